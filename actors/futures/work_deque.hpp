#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

namespace troupe::actors {

/// A work-stealing queue of pointers: its owner pushes and pops at one end (last in, first out),
/// any other thread steals from the other. Grows and never shrinks. After D. Chase, Y. Lev,
/// "Dynamic circular work-stealing deque" (SPAA 2005), with the orderings of N. M. Lê et al.,
/// "Correct and efficient work-stealing for weak memory models" (PPoPP 2013), their fences written
/// as sequentially consistent accesses, which ThreadSanitizer understands.
template <class T>
class work_deque {
 public:
  work_deque() { grow(nullptr, 0, 0); }
  work_deque(const work_deque&) = delete;
  work_deque& operator=(const work_deque&) = delete;
  ~work_deque() = default;

  /// Called by the owner. Sequentially consistent with `empty`, for a thief that announces its
  /// sleep first.
  void push(T* item) {
    const auto bottom = bottom_.load(std::memory_order_relaxed);
    const auto top = top_.load(std::memory_order_acquire);
    auto* in = ring_.load(std::memory_order_relaxed);
    if (bottom - top >= in->size) in = grow(in, top, bottom);
    in->at(bottom).store(item, std::memory_order_relaxed);
    bottom_.store(bottom + 1, std::memory_order_seq_cst);
  }

  /// Called by the owner. Null if there is nothing.
  T* pop() {
    const auto bottom = bottom_.load(std::memory_order_relaxed) - 1;
    const auto* const in = ring_.load(std::memory_order_relaxed);
    bottom_.store(bottom, std::memory_order_seq_cst);
    auto top = top_.load(std::memory_order_seq_cst);
    if (top > bottom) {
      bottom_.store(bottom + 1, std::memory_order_relaxed);
      return nullptr;
    }
    T* item = in->at(bottom).load(std::memory_order_relaxed);
    if (top == bottom) {  // the last one, which a thief may want too
      if (!top_.compare_exchange_strong(top, top + 1, std::memory_order_seq_cst)) item = nullptr;
      bottom_.store(bottom + 1, std::memory_order_relaxed);
    }
    return item;
  }

  /// From any thread. Null if there is nothing, or another thread was faster.
  T* steal() {
    auto top = top_.load(std::memory_order_seq_cst);
    const auto bottom = bottom_.load(std::memory_order_seq_cst);
    if (top >= bottom) return nullptr;
    T* const item = ring_.load(std::memory_order_acquire)->at(top).load(std::memory_order_relaxed);
    if (!top_.compare_exchange_strong(top, top + 1, std::memory_order_seq_cst)) return nullptr;
    return item;
  }

  /// From any thread.
  [[nodiscard]] bool empty() const {
    return top_.load(std::memory_order_seq_cst) >= bottom_.load(std::memory_order_seq_cst);
  }

 private:
  struct ring {
    explicit ring(std::int64_t capacity)
        : size(capacity), items(new std::atomic<T*>[static_cast<std::size_t>(capacity)]) {}
    [[nodiscard]] std::atomic<T*>& at(std::int64_t index) const {
      return items[static_cast<std::size_t>(index & (size - 1))];
    }
    std::int64_t size;  // a power of two
    std::unique_ptr<std::atomic<T*>[]> items;
  };

  ring* grow(const ring* old, std::int64_t top, std::int64_t bottom) {
    auto& made = rings_.emplace_back(std::make_unique<ring>(old ? 2 * old->size : 64));
    for (auto i = top; i < bottom; ++i)
      made->at(i).store(old->at(i).load(std::memory_order_relaxed), std::memory_order_relaxed);
    ring_.store(made.get(), std::memory_order_release);
    return made.get();
  }

  alignas(64) std::atomic<std::int64_t> top_ = 0;
  alignas(64) std::atomic<std::int64_t> bottom_ = 0;
  std::atomic<ring*> ring_ = nullptr;
  std::vector<std::unique_ptr<ring>> rings_;  // the owner's; old ones may still be read by thieves
};

}  // namespace troupe::actors
