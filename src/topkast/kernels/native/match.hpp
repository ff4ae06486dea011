// Matching two increasing lists of positions: which elements stay, which enter, which leave.
#pragma once

#include <cstdint>
#include <utility>

namespace topkast {

// For each i < num_after: source[i] is the place of after[i] in `before`, or 0 if it is not there, and then i is added
// to `entering`. Places of `before` that are not in `after` are added to `leaving`. Room for `entering` and `leaving`: what
// `count_unmatched` says.
inline void match(const int64_t* before, int64_t num_before, const int64_t* after,
                                         int64_t num_after, int64_t* source, int64_t* entering, int64_t* leaving) {
  int64_t b = 0, num_entering = 0, num_leaving = 0;
  for (int64_t a = 0; a < num_after; ++a) {
    while (b < num_before && before[b] < after[a]) leaving[num_leaving++] = b++;
    if (b < num_before && before[b] == after[a]) {
      source[a] = b++;
    } else {
      source[a] = 0;
      entering[num_entering++] = a;
    }
  }
  while (b < num_before) leaving[num_leaving++] = b++;
}

// How many would enter and how many would leave.
inline std::pair<int64_t, int64_t> count_unmatched(const int64_t* before, int64_t num_before, const int64_t* after,
                                                   int64_t num_after) {
  int64_t a = 0, b = 0, common = 0;
  while (a < num_after && b < num_before) {
    common += before[b] == after[a];
    const bool next_b = before[b] <= after[a], next_a = after[a] <= before[b];
    b += next_b;
    a += next_a;
  }
  return {num_after - common, num_before - common};
}

}  // namespace topkast
