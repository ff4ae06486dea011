// Top-K with floors: every row and every column of a matrix keeps some of its largest elements, whatever their rank.
#pragma once

#include <cstdint>
#include <vector>

namespace topkast {

// How positions lie in a weight, and how many elements each line keeps at least.
//
//   position = (row * columns + column) * taps + tap
//
// With `groups` the rows are in so many blocks of one size, and each block has columns of its own.
struct Lines {
  int64_t rows, columns, taps, groups;
  int64_t per_row, per_column;

  int64_t width() const { return columns * taps; }
  int64_t size() const { return rows * width(); }
};

// Repairs a Top-K. Of n elements with increasing positions let T be the k with the largest magnitudes, and
//
//   F = the `per_row` largest of each row and the `per_column` largest of each column (all, where there are fewer)
//   S = F and the k - |F| largest of the others,
//
// ties to the smaller position. If no line has fewer elements in T than it keeps, S is T. Else F \ T are members of
// the lines that are short, and as many leave T: the least that are not in F. (k must be at least |F|.)
class Floored {
 public:
  // `active` has a flag for each element; flipping those at `wrong`, which increase, gives T. `least` is the least
  // magnitude in T. `bound` is what the least magnitude of S \ F is compared with later: where T is S and all of it is
  // larger, that is not looked for. Throws std::invalid_argument for a position or slot out of range or order.
  template <typename T, typename P>
  void choose(const T* values, const P* positions, const uint8_t* active, int64_t n, const int64_t* wrong,
              int64_t num_wrong, const Lines& lines, double least, double bound);

  // Slots whose flag in `active` is not what S says, increasing.
  const std::vector<int64_t>& changed() const { return changed_; }
  // The least magnitude in S \ F, infinity if that is empty; or that of T, where it says enough.
  double least() const { return least_; }

 private:
  std::vector<int64_t> changed_;
  double least_ = 0;
};

}  // namespace topkast
