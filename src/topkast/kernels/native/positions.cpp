#include "positions.hpp"

#include <cstring>

namespace topkast {
namespace {

// Not proof against somebody who makes two contents with the same number: what is known by it is checked all the same.
uint64_t fingerprint(const void* memory, int64_t bytes, uint64_t seed) {
  constexpr uint64_t odd = 0x9E3779B97F4A7C15u;
  constexpr int64_t lanes = 4, step = lanes * 8;  // independent, so that multiplications overlap
  const char* from = static_cast<const char*>(memory);
  uint64_t h[lanes] = {seed, seed + 1, seed + 2, seed + 3};
  // What is xored in is multiplied and turned, so that every bit of it comes to count in the low bits too.
  auto take = [&](const char* at) {
    uint64_t words[lanes];
    std::memcpy(words, at, step);
    for (int i = 0; i < lanes; ++i) {
      const uint64_t mixed = (h[i] ^ words[i]) * odd;
      h[i] = (mixed << 29) | (mixed >> 35);
    }
  };
  int64_t done = 0;
  for (; done + step <= bytes; done += step) take(from + done);
  char rest[step] = {};
  if (done < bytes) std::memcpy(rest, from + done, bytes - done);
  take(rest);
  uint64_t all = static_cast<uint64_t>(bytes);
  for (uint64_t lane : h) all = (all ^ lane ^ (lane >> 32)) * odd, all ^= all >> 29;
  return all;
}

// A number without a pattern for each slot (the end of splitmix64).
uint64_t mixed(uint64_t slot) {
  uint64_t z = slot + 0x9E3779B97F4A7C15u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

}  // namespace

template <typename Index>
uint64_t inspect(int64_t numel, const Index* positions, const uint8_t* active, int64_t num_slots, int num_threads) {
  constexpr int64_t piece = 1 << 16;  // what the number is does not depend on the number of threads
  if (num_slots > 0 && (positions[0] < 0 || static_cast<int64_t>(positions[num_slots - 1]) >= numel))
    refuse_positions(numel, positions, num_slots);
  int unsound = 0;
  uint64_t sum = 0;
#pragma omp parallel for num_threads(num_slots < piece ? 1 : num_threads) schedule(static) reduction(+ : sum) \
    reduction(| : unsound)
  for (int64_t first = 0; first < num_slots; first += piece) {
    const int64_t last = std::min(first + piece, num_slots);
    unsound |= !increase(positions, std::max<int64_t>(first, 1), last);
    sum += fingerprint(positions + first, (last - first) * static_cast<int64_t>(sizeof(Index)), first);
    for (int64_t slot = first; slot < last; ++slot) sum += active[slot] ? mixed(static_cast<uint64_t>(slot)) : 0;
  }
  if (unsound) refuse_positions(numel, positions, num_slots);
  return sum;
}

uint64_t inspect_change(const int64_t* slots, const uint8_t* enters, int64_t count, int num_threads) {
  uint64_t sum = 0;
#pragma omp parallel for num_threads(num_threads) schedule(static) reduction(+ : sum)
  for (int64_t i = 0; i < count; ++i) {
    const uint64_t part = mixed(static_cast<uint64_t>(slots[i]));
    sum += enters[i] ? part : ~part + 1;
  }
  return sum;
}

template <typename Index>
void flip(const Index* positions, uint8_t* active, int64_t num_slots, const int64_t* slots, int64_t count,
          int64_t* flipped_positions, uint8_t* enters, int num_threads) {
  check_positions(num_slots, slots, count);
  constexpr int64_t ahead = 16;  // every slot is in lines of its own, which nothing has asked for
#pragma omp parallel for num_threads(num_threads) schedule(static)
  for (int64_t i = 0; i < count; ++i) {
    if (i + ahead < count) {
      __builtin_prefetch(active + slots[i + ahead], 1);
      __builtin_prefetch(positions + slots[i + ahead]);
    }
    uint8_t& flag = active[slots[i]];
    flag = enters[i] = flag == 0;
    flipped_positions[i] = static_cast<int64_t>(positions[slots[i]]);
  }
}

uint64_t glance(const void* positions, int64_t index_bytes, const uint8_t* active, int64_t num_slots) {
  const char* from = static_cast<const char*>(positions);
  const int64_t length = num_slots <= glance_blocks * glance_length ? num_slots : glance_length;
  const int64_t blocks = length == 0 ? 0 : length == num_slots ? 1 : glance_blocks;
  uint64_t seed = static_cast<uint64_t>(num_slots);
  for (int64_t i = 0; i < blocks; ++i) {
    const int64_t first = blocks == 1 ? 0 : (num_slots - length) * i / (blocks - 1);
    seed = fingerprint(active + first, length, seed);
    seed = fingerprint(from + first * index_bytes, length * index_bytes, seed);
  }
  return seed;
}

template void flip(const int32_t*, uint8_t*, int64_t, const int64_t*, int64_t, int64_t*, uint8_t*, int);
template void flip(const int64_t*, uint8_t*, int64_t, const int64_t*, int64_t, int64_t*, uint8_t*, int);
template uint64_t inspect(int64_t, const int32_t*, const uint8_t*, int64_t, int);
template uint64_t inspect(int64_t, const int64_t*, const uint8_t*, int64_t, int);

}  // namespace topkast
