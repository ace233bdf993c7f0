// What the attention kernels use of TBB, on our workers: a step then has one set of threads, and needs no TBB.

#pragma once

#include "../workers.h"

namespace tbb {

template <typename Index>
class blocked_range {
   public:
    blocked_range(Index begin, Index end, Index grain) : begin_(begin), end_(end), grain_(grain) {}
    Index begin() const { return begin_; }
    Index end() const { return end_; }
    Index grain() const { return grain_; }

   private:
    Index begin_, end_, grain_;
};

template <typename Work>
void parallel_for(const blocked_range<int>& range, Work work) {
    if (!Workers::current) return work(range);
    Workers::current->split(range.end() - range.begin(), range.grain(), [&](int begin, int end) {
        work(blocked_range<int>(range.begin() + begin, range.begin() + end, range.grain()));
    });
}

template <typename Work>
void parallel_for(int begin, int end, Work work) {
    parallel_for(blocked_range<int>(begin, end, 1), [&](const blocked_range<int>& range) {
        for (int i = range.begin(); i < range.end(); i++) work(i);
    });
}

}  // namespace tbb
