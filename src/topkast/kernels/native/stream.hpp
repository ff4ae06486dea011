// The initial theta of one weight as a stream of its elements in order of magnitude, without storing any of them.
//
// An i.i.d. symmetric theta is a random order of the positions and, independent of it, sorted magnitudes and signs.
// Rank r (0 is the largest) sits at position pi(r), for a keyed permutation pi of [0, n); its magnitude is the quantile
// at 1 - (r + 1/2) / n of the initial distribution of |theta|; its sign is a bit of the key. All of it is computed from
// integers and the operations that IEEE 754 rounds correctly, so that it is the same on every machine.
#pragma once

#include <cstdint>

namespace topkast {

// The network of a Permutation: numbers below a * b as (x / b, x mod b), with a key for each round.
struct Rounds {
  static constexpr int count = 6;
  uint64_t a, b;  // about sqrt(n)
  uint64_t keys[count];
};

// A permutation of [0, n): a Feistel network on (rank / b, rank mod b) with a * b >= n, walking on while it is outside.
class Permutation {
 public:
  Permutation(int64_t n, uint64_t key);
  int64_t position(int64_t rank) const;  // pi
  int64_t rank(int64_t position) const;  // its inverse
  // The same for many at once, in place: vectors make it some six times as fast.
  void to_positions(int64_t* ranks, int64_t count) const;
  void to_ranks(int64_t* positions, int64_t count) const;
  int64_t size() const { return n_; }
  bool negative(int64_t rank) const;  // the sign of the element of this rank

 private:
  int64_t n_;
  Rounds rounds_;
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
  const Permutation& permutation() const { return permutation_; }
  // How many ranks have a magnitude of at least `threshold`, rounded to T.
  template <typename T>
  int64_t count_at_least(T threshold) const;
  // Positions of the ranks [first, first + count), increasing. P must hold n - 1.
  template <typename P>
  void positions(int64_t first, int64_t count, P* out, int num_threads) const;
  // Ranks and, if wanted, values of given positions, which must lie in [0, n): throws std::invalid_argument if not.
  template <typename T, typename P>
  void look_up(const P* positions, int64_t count, int64_t* ranks, T* values, int num_threads) const;
  // The value of every element, by position.
  template <typename T>
  void dense(T* out, int num_threads) const;
  template <typename T>
  T value(int64_t rank) const {
    const T magnitude = static_cast<T>(magnitudes_.at(rank, size()));
    return permutation_.negative(rank) ? -magnitude : magnitude;
  }

 private:
  Permutation permutation_;
  Magnitudes magnitudes_;
};

}  // namespace topkast
