// An implicit theta as it is now: B, what has left B, and the stream of all that was never in B.
#pragma once

#include <cstdint>
#include <vector>

#include "stream.hpp"

namespace topkast {

// Increasing positions with their values.
template <typename T, typename P>
struct List {
  const P* positions;
  const T* values;
  int64_t size;
};

// What of the stream is not known: ranks from `cursor` on, but for the `early` ones, which increase.
struct Unknown {
  const Stream& stream;
  int64_t cursor;
  const int64_t* early;
  int64_t num_early;

  // How many have a magnitude of at least `threshold`.
  template <typename T>
  int64_t count_at_least(T threshold) const;
  bool is_early(int64_t rank) const;
};

// Writes the k largest elements by magnitude, ties to the smaller position, as increasing positions with their values.
// All numbers are finite; 0 < k <= n. Time and room follow k and the sizes of the lists.
//
// The threshold is found digit by digit: a pass over the values counts the known ones, the stream is sorted and can be
// asked. Then one more pass picks from the three sources at once, by ranges of positions.
template <typename T, typename P>
void largest(const Unknown& unknown, List<T, P> b, List<T, P> returned, int64_t k, int64_t* positions, T* values,
             int num_threads);

// Elements that enter B. Making it writes the value of each: from `returned` where `source` says so, from the stream
// where that is -1; the ranks of those become known. Throws std::invalid_argument for a position or place beyond.
class Entrants {
 public:
  template <typename T, typename S>
  Entrants(const Unknown& unknown, const int64_t* positions, int64_t count, const S* source, const T* returned_values,
           int64_t num_returned, T* values, int num_threads);

  int64_t cursor() const { return cursor_; }                    // all ranks below are known now
  const std::vector<int64_t>& early() const { return early_; }  // known ranks from the cursor on, increasing

 private:
  int64_t cursor_;
  std::vector<int64_t> early_;
};

}  // namespace topkast
