// The initial theta of one weight as a stream of its elements in order of magnitude, without storing any of them.
//
// An i.i.d. symmetric theta is a random order of the positions and, independent of it, sorted magnitudes and signs.
// Rank r (0 is the largest) sits at position pi(r), for a keyed permutation pi of [0, n); its magnitude is the quantile
// at 1 - (r + 1/2) / n of the initial distribution of |theta|; its sign is a bit of the key. All of it is computed from
// integers and the operations that IEEE 754 rounds correctly, so that it is the same on every machine.
#pragma once

#include <cstdint>

namespace topkast {

// A permutation of [0, n): a Feistel network on (rank / b, rank mod b) with a * b >= n, walking on while it is outside.
class Permutation {
 public:
  Permutation(int64_t n, uint64_t key);
  int64_t position(int64_t rank) const;  // pi
  int64_t rank(int64_t position) const;  // its inverse
  int64_t size() const { return n_; }
  bool negative(int64_t rank) const;  // the sign of the element of this rank

 private:
  static constexpr int kRounds = 6;
  int64_t n_;
  uint64_t a_, b_;
  uint64_t keys_[kRounds];
  uint64_t sign_key_;
};

enum class Kind { uniform = 0, normal = 1 };

// The distribution of |theta|: uniform on [0, scale], or normal with the standard deviation `scale`, cut off where it
// holds the share `mass` of the whole (1: not cut off).
struct Magnitudes {
  Kind kind;
  double scale;
  double mass;
  // The quantile at 1 - (rank + 1/2) / n. Does not increase with the rank.
  double at(int64_t rank, int64_t n) const;
};

class Stream {
 public:
  static constexpr int64_t kLargest = int64_t(1) << 48;
  // Throws std::invalid_argument with the rule that is broken.
  Stream(int64_t n, uint64_t key, int kind, double scale, double mass);

  int64_t size() const { return permutation_.size(); }
  // How many ranks have a magnitude of at least `threshold`, rounded to T.
  template <typename T>
  int64_t count_at_least(T threshold) const;
  // Positions of the ranks [first, first + count), increasing.
  void positions(int64_t first, int64_t count, int64_t* out, int num_threads) const;
  // Ranks and, if wanted, values of given positions, which must lie in [0, n): throws std::invalid_argument if not.
  template <typename T>
  void look_up(const int64_t* positions, int64_t count, int64_t* ranks, T* values, int num_threads) const;
  // The value of every element, by position.
  template <typename T>
  void dense(T* out, int num_threads) const;

 private:
  template <typename T>
  T value(int64_t rank) const;
  Permutation permutation_;
  Magnitudes magnitudes_;
};

// Merges two increasing lists of distinct positions with their values.
template <typename T>
void merge_sorted(const int64_t* a, const T* a_values, int64_t num_a, const int64_t* b, const T* b_values,
                  int64_t num_b, int64_t* out, T* out_values);

}  // namespace topkast
