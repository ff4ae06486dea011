// Choosing A within B: the K_A largest magnitudes of `values`, and what that changes. For every step, so it costs about
// one pass over |B| numbers.
#pragma once

#include <cstdint>
#include <vector>

namespace topkast {

class Within {
 public:
  // Finds the k largest magnitudes of `values`, ties to the smaller slot, and compares them with the flags in `active`.
  // Those with a flag count `factor` times, rounded to T.
  // False if a number is not finite: nothing was found then. Results do not depend on the number of threads, nor on
  // what was chosen before, which only makes it faster: the threshold is looked for around the last one.
  template <typename T>
  bool choose(const T* values, const uint8_t* active, int64_t n, int64_t k, double factor, int num_threads);

  // The k-th largest magnitude, or the smallest if there are fewer; infinity if k is 0.
  double threshold() const { return threshold_; }
  // Slots whose flag is not what it should be, increasing.
  const std::vector<int64_t>& changed() const { return changed_; }

 private:
  template <typename T>
  bool choose_all(const T* values, const uint8_t* active, int64_t n, T favour, bool takes);

  double threshold_ = 0;
  double drift_ = 0;  // how far it moved at the last choice, relative
  double width_ = 0;  // of the band around where it is expected, relative; 0 to take a sample
  std::vector<int64_t> changed_;
};

}  // namespace topkast
