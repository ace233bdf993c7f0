// Work that is done while the caller does something else: by threads of its own, which end with the work, and by the caller
// once it waits.

#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "workers.h"

class Background {
   public:
    explicit Background(int num_threads) : num_threads_(num_threads) {}
    ~Background() { cancel(); }

    // work(i) for every i in [0, count), all of it before `finish` returns.
    void add(int count, std::function<void(int)> work) {
        if (count <= 0) return;
        {
            const std::lock_guard lock(mutex_);
            jobs_.push_back(std::make_shared<Job>(Job{count, 0, std::move(work)}));
        }
        changed_.notify_all();
        try {
            while ((int)threads_.size() < num_threads_) threads_.emplace_back([this] { live(); });
        } catch (const std::system_error&) {  // the system has no more: then who waits does it
        }
    }

    void finish() {
        const WithoutDenormals without_denormals;
        while (work_some()) {}
        join();
    }

    // What has not been begun is not done any more.
    void cancel() {
        {
            const std::lock_guard lock(mutex_);
            jobs_.clear();
        }
        join();
    }

   private:
    struct Job {
        int count, next;
        std::function<void(int)> work;
    };

    // A piece of the first job; false if all are begun.
    bool work_some() {
        std::shared_ptr<Job> job;
        int piece;
        {
            const std::lock_guard lock(mutex_);
            if (jobs_.empty()) return false;
            job = jobs_.front(), piece = job->next++;
            if (job->next == job->count) jobs_.pop_front();
        }
        job->work(piece);
        return true;
    }

    void live() {
        const WithoutDenormals without_denormals;
        for (;;) {
            while (work_some()) {}
            std::unique_lock lock(mutex_);
            changed_.wait(lock, [this] { return is_over_ || !jobs_.empty(); });
            if (jobs_.empty()) return;
        }
    }

    void join() {
        {
            const std::lock_guard lock(mutex_);
            is_over_ = true;
        }
        changed_.notify_all();
        for (std::thread& thread : threads_) thread.join();
        threads_.clear();
        is_over_ = false;
    }

    const int num_threads_;
    std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<std::shared_ptr<Job>> jobs_;
    std::vector<std::thread> threads_;
    bool is_over_ = false;
};
