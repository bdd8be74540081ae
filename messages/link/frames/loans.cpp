#include "messages/link/frames/loans.hpp"

#include <fmt/format.h>

#include <utility>

namespace troupe::messages {

void return_desk::hand_in(peer_id from, std::uint64_t loan) {
  const std::lock_guard lock(mutex_);
  if (to_) to_(from, loan);
}

void return_desk::close() {
  const std::lock_guard lock(mutex_);
  to_ = nullptr;
}

lent_tensors::~lent_tensors() {
  if (open_.empty()) return;
  std::vector<payload> rest;
  for (auto& [number, bytes] : open_) rest.push_back(std::move(bytes));
  from_->keep_until_end(to_, std::move(rest));
}

std::optional<wire::loan> lent_tensors::lend(std::uint32_t tensor, payload& bytes,
                                             std::size_t item) {
  const auto offset = from_->offset_of(bytes);
  if (!offset || *offset % item != 0) return std::nullopt;
  open_.emplace(++last_, std::move(bytes));
  return wire::loan{.tensor = tensor, .number = last_, .offset = *offset};
}

result<payload> lender::borrow(const wire::loan& loan, std::uint64_t bytes,
                               std::size_t item) const {
  if (loan.offset > memory->bytes() || bytes > memory->bytes() - loan.offset ||
      loan.offset % item != 0)
    return fail(errc::bad_frame, fmt::format("{} bytes are lent at {} of a memory of {}", bytes,
                                             loan.offset, memory->bytes()));
  // The memory is only mapped to be read: `read_only` says so.
  auto* const data = const_cast<std::byte*>(memory->at(loan.offset));
  std::shared_ptr<void> owner(data, [held = memory, at = desk, from = peer,
                                     number = loan.number](void*) { at->hand_in(from, number); });
  return payload{.data = data, .bytes = bytes, .owner = std::move(owner), .read_only = true};
}

}  // namespace troupe::messages
