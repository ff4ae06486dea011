// Increasing lists of positions: where the elements of one are in another, which are missing there, both as one list;
// and moving numbers along. Threaded; no result depends on the number of threads.
#pragma once

#include <cstdint>
#include <vector>

namespace topkast {

// source[i] is the place of after[i] in `before`, or -1. S must hold num_before.
template <typename P, typename Q, typename S>
void locate(const P* before, int64_t num_before, const Q* after, int64_t num_after, S* source, int num_threads);

// The places in a list of what is not in another one.
class Absent {
 public:
  template <typename P, typename Q>
  Absent(const P* list, int64_t num_list, const Q* other, int64_t num_other, int num_threads);

  int64_t size() const { return first_.back(); }
  // To room for size() places, increasing.
  template <typename S>
  void write(S* out, int num_threads) const;

 private:
  std::vector<std::vector<uint16_t>> chunks_;  // by chunk of the list, counted from its first
  std::vector<int64_t> first_;                 // how many are in the chunks before
};

// Two increasing lists without a common element as one, less some elements of the first. Positions are written before
// numbers that belong to them; after that the old positions are not needed any more, which saves their room.
class Union {
 public:
  // `dropped` are places in `a`; those below 0 are passed over. False in `is_valid` if one is beyond `a`.
  template <typename P, typename S>
  Union(const P* a, int64_t num_a, const S* dropped, int64_t num_dropped, const P* b, int64_t num_b, int num_threads);

  bool is_valid() const { return is_valid_; }
  int64_t num_a() const { return num_a_; }
  int64_t num_b() const { return num_b_; }
  bool has_order() const { return size() == 0 || !groups_.front().is_from_a.empty(); }
  int64_t size() const { return groups_.empty() ? 0 : groups_.back().to; }
  template <typename P>
  void write_positions(const P* a, const P* b, P* out, int num_threads);
  template <typename T>
  void write_numbers(const T* a, const T* b, T* out, int num_threads) const;

 private:
  struct Group {
    int64_t a_first, a_last, b_first, b_last, from, to;
    std::vector<uint64_t> is_from_a;  // a bit for each that was written
  };
  bool is_dropped(int64_t place) const { return dropped_[place >> 6] >> (place & 63) & 1; }

  std::vector<uint64_t> dropped_;
  std::vector<Group> groups_;
  int64_t num_a_, num_b_;
  bool is_valid_ = true;
};

// Sets the bit of each position in `bits`, which has a bit for each there can be, eight to a byte, and begins as zeros.
template <typename P>
void mark(const P* positions, int64_t count, uint8_t* bits, int num_threads);

// The positions whose bit is set.
class Marked {
 public:
  Marked(const uint8_t* bits, int64_t num_bytes, int num_threads);

  int64_t size() const { return first_.back(); }
  // To room for size() positions, increasing; of bits as they were when this was made.
  template <typename P>
  void write(const uint8_t* bits, P* out, int num_threads) const;

  int64_t num_bytes() const { return num_bytes_; }

 private:
  int64_t num_bytes_;
  std::vector<int64_t> first_;  // how many are in the chunks before
};

// out[i] = from[source[i]], or `fill` where source[i] is -1. False if a place is not within `from`: what `out` has then
// means nothing. For unsigned integers of 1, 2, 4 and 8 bytes.
template <typename T, typename S>
bool gather(const T* from, int64_t num_from, const S* source, int64_t count, T fill, T* out, int num_threads);

}  // namespace topkast
