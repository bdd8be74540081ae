#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>

#include "messages/base/ids.hpp"
#include "messages/link/seal/format.hpp"
#include "messages/link/shared_memory.hpp"

namespace troupe::messages {

/// Where borrowed tensors are returned when their last owner releases them, in any thread and
/// perhaps after their link has ended.
class return_desk {
 public:
  using taker = std::function<void(peer_id from, std::uint64_t loan)>;

  explicit return_desk(taker to) : to_(std::move(to)) {}

  void hand_in(peer_id from, std::uint64_t loan);
  /// Nothing is taken any more once this returns.
  void close();

 private:
  std::mutex mutex_;
  taker to_;
};

/// The parts of our memory that are lent to one peer. A loan ends when the peer returns it, or with
/// the peer's process: that a connection is lost does not prove that the peer has stopped reading.
/// One thread.
class lent_tensors {
 public:
  lent_tensors(std::shared_ptr<shared_memory> from, std::shared_ptr<descriptor> to)
      : from_(std::move(from)), to_(std::move(to)) {}
  lent_tensors(const lent_tensors&) = delete;
  lent_tensors& operator=(const lent_tensors&) = delete;
  /// Leaves what is still lent with the memory.
  ~lent_tensors();

  /// Lends these bytes, if they lie in the memory as elements of that size must; takes them over
  /// then.
  [[nodiscard]] std::optional<wire::loan> lend(std::uint32_t tensor, payload& bytes,
                                               std::size_t item);
  /// Whether there was such a loan.
  bool end(std::uint64_t loan) { return open_.erase(loan) > 0; }

 private:
  const std::shared_ptr<shared_memory> from_;
  const std::shared_ptr<descriptor> to_;
  std::unordered_map<std::uint64_t, payload> open_;  // by number
  std::uint64_t last_ = 0;
};

/// Another process's memory and the way back for what was borrowed of it.
struct lender {
  std::shared_ptr<borrowed_memory> memory;
  std::shared_ptr<return_desk> desk;
  peer_id peer;

  /// The bytes of a loan, handed back with their last owner. Not to be called twice for one loan.
  /// Errors: bad_frame when they do not lie in the memory, or not as elements of that size must.
  [[nodiscard]] result<payload> borrow(const wire::loan& loan, std::uint64_t bytes,
                                       std::size_t item) const;
};

}  // namespace troupe::messages
