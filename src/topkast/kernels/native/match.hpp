// Matching two increasing lists of positions: which elements stay, which enter, which leave.
#pragma once

#include <cstdint>
#include <vector>

namespace topkast {

// What changes from one list to the next. Making it writes source[i], for each i < num_after: the place of after[i] in
// `before`, or 0 if it is not there. Threaded; the result does not depend on the number of threads.
class Changes {
 public:
  Changes(const int64_t* before, int64_t num_before, const int64_t* after, int64_t num_after, int64_t* source,
          int num_threads);

  int64_t num_entering() const { return num_entering_; }
  int64_t num_leaving() const { return num_leaving_; }

  // The places in `after` of what is new, and the places in `before` of what is gone; increasing.
  void write(int64_t* entering, int64_t* leaving) const;

 private:
  struct Chunk {
    std::vector<int64_t> entering, leaving;
  };
  std::vector<Chunk> chunks_;
  int64_t num_entering_ = 0, num_leaving_ = 0;
};

}  // namespace topkast
