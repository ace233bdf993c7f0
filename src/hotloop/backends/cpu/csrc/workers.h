// Threads of our own. `run` has every worker, the calling thread among them, do its share, and returns when all are done.
//
// Within a step shares are microseconds apart, so that workers look out for the next one for a while before they sleep.
// None is tied to a CPU: the calling thread is not, and would meet one that is.

#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

// On this thread, numbers too small to be normal are zero for as long as there is one of these: x86 takes a hundred times
// as long for such a number, and weights of attention that are next to nothing are many.
class WithoutDenormals {
   public:
#if defined(__x86_64__)
    WithoutDenormals() { _mm_setcsr(before_ | 0x8040); }
    ~WithoutDenormals() { _mm_setcsr(before_); }

   private:
    const unsigned before_ = _mm_getcsr();
#else
    ~WithoutDenormals() {}
#endif
};

class Workers {
   public:
    explicit Workers(int num_workers) : num_workers(num_workers), ranges_(num_workers) {
        try {
            for (int i = 1; i < num_workers; i++) threads_.emplace_back([this, i] { live(i); });
        } catch (...) {  // the system has no more: those that are there would end the process if nobody joined them
            end();
            throw;
        }
    }

    ~Workers() { end(); }

    const int num_workers;

    // Whose turn it is on this thread: for kernels that are not handed any.
    static inline thread_local Workers* current = nullptr;

    // work(worker), once for each of them.
    void run(const std::function<void(int)>& work) {
        work_ = &work;
        num_busy_ = num_workers - 1;
        begin();
        work(0);
        for (int busy, spins = 0; (busy = num_busy_.load(std::memory_order_acquire));)
            if (!look_again(spins)) num_busy_.wait(busy);
    }

    // work(job, worker) for every job in [0, num_jobs); `enter` and `leave` once for each worker. A worker first does a
    // range of its own and then helps the others, so that successive calls over the same rows reuse its caches.
    template <typename Enter, typename Work, typename Leave>
    void share(int num_jobs, Enter enter, Work work, Leave leave) {
        const WithoutDenormals without_denormals;
        auto all = [&](int worker) {
            enter();
            for (int i = 0; i < num_workers; i++) {
                Range& range = ranges_[(worker + i) % num_workers];
                for (int job; range.next < range.end && (job = range.next.fetch_add(1)) < range.end;) work(job, worker);
            }
            leave();
        };
        if (num_jobs == 1) return enter(), work(0, 0), leave();
        auto first = [&](int worker) { return (int)(((int64_t)num_jobs * worker + num_workers - 1) / num_workers); };
        for (int i = 0; i < num_workers; i++) {
            ranges_[i].next.store(first(i), std::memory_order_relaxed);
            ranges_[i].end = first(i + 1);
        }
        run(std::ref(all));
    }

    // work(begin, end) over [0, count), in pieces of `grain`.
    template <typename Work>
    void split(int count, int grain, Work work) {
        auto none = [] {};
        auto piece = [&](int job, int) { work(job * grain, job * grain + grain < count ? job * grain + grain : count); };
        if (count > 0) share((count + grain - 1) / grain, none, piece, none);
    }

   private:
    struct alignas(64) Range {
        std::atomic<int> next{0};
        int end = 0;
    };

    static constexpr int NUM_SPINS = 1000;

    static bool look_again(int& spins) {
        if (++spins > NUM_SPINS) return false;
#if defined(__x86_64__)
        if (spins % 16) return __builtin_ia32_pause(), true;
#endif
        std::this_thread::yield();  // to a worker that the system put on the same CPU
        return true;
    }

    void end() {
        is_over_ = true;
        begin();
        for (std::thread& thread : threads_) thread.join();
    }

    void begin() {
        round_.fetch_add(1, std::memory_order_release);
        round_.notify_all();
    }

    void live(int worker) {
        const WithoutDenormals without_denormals;
        for (int seen = 0;;) {
            for (int spins = 0; round_.load(std::memory_order_acquire) == seen;)
                if (!look_again(spins)) round_.wait(seen);
            seen++;
            if (is_over_) return;
            (*work_)(worker);
            if (num_busy_.fetch_sub(1, std::memory_order_release) == 1) num_busy_.notify_one();
        }
    }

    std::vector<Range> ranges_;
    std::vector<std::thread> threads_;
    std::atomic<int> round_{0}, num_busy_{0};
    std::atomic<bool> is_over_{false};
    const std::function<void(int)>* work_ = nullptr;
};

// The same by the workers whose turn it is on this thread, or by this thread alone where there are none.
template <typename Work>
void split_work(int count, int grain, Work work) {
    if (Workers::current) return Workers::current->split(count, grain, work);
    for (int i = 0; i < count; i += grain) work(i, i + grain < count ? i + grain : count);
}
