#pragma once

#include <atomic>
#include <optional>
#include <utility>

namespace troupe::messages {

/// An unbounded queue from many threads to one, without locks (D. Vyukov's intrusive list: a push
/// is one exchange). What one thread pushes comes out in its order.
template <class T>
class mpsc_queue {
 public:
  mpsc_queue() : newest_(new node), oldest_(newest_.load(std::memory_order_relaxed)) {}
  mpsc_queue(const mpsc_queue&) = delete;
  mpsc_queue& operator=(const mpsc_queue&) = delete;
  ~mpsc_queue() {
    while (pop()) {
    }
    delete oldest_;
  }

  /// From any thread. Sequentially consistent with `empty`, so that a consumer that announces its
  /// sleep and then finds the queue empty cannot miss a push.
  void push(T&& item) {
    node* const added = new node{.item = std::move(item)};
    node* const before = newest_.exchange(added, std::memory_order_seq_cst);
    before->next.store(added, std::memory_order_release);
  }

  /// The consumer's thread only. Empty also while the oldest push is still under way.
  std::optional<T> pop() {
    node* const next = oldest_->next.load(std::memory_order_acquire);
    if (next == nullptr) return std::nullopt;
    delete std::exchange(oldest_, next);
    return std::exchange(next->item, std::nullopt);
  }

  /// The consumer's thread only. False as soon as a push has begun.
  [[nodiscard]] bool empty() const { return newest_.load(std::memory_order_seq_cst) == oldest_; }

 private:
  struct node {
    std::atomic<node*> next = nullptr;
    std::optional<T> item = std::nullopt;
  };

  // On cache lines of their own: the consumer's steps must not take the producers' end from them.
  alignas(64) std::atomic<node*> newest_;
  alignas(64) node* oldest_;  // already consumed; its successors hold the items
};

}  // namespace troupe::messages
