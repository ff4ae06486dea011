// From one list of positions to the next: which elements stay, enter and leave, and moving numbers along with them.
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

// out[i] = from[source[i]] for each i < count; num_from > 0 unless count is 0. False if a place is not within `from`:
// what `out` has then means nothing. For unsigned integers of 1, 2, 4 and 8 bytes.
template <typename T>
bool gather(const T* from, int64_t num_from, const int64_t* source, int64_t count, T* out, int num_threads);

}  // namespace topkast
