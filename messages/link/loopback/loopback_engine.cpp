#include "messages/link/loopback/loopback_engine.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace troupe::messages {

void loopback_engine::put(std::deque<item>& queue, item what) {
  queue.push_back(std::move(what));
  wake_.notify_one();
}

bool loopback_engine::join(const std::shared_ptr<loopback_engine>& from,
                           const std::shared_ptr<loopback_engine>& to, link::connected done) {
  // Both learn of each other before either can send.
  std::unique_lock first(from->mutex_, std::defer_lock);
  std::unique_lock second(to->mutex_, std::defer_lock);
  if (from == to) {
    first.lock();
  } else {
    std::lock(first, second);
  }
  if (from->stopped_ || to->stopped_) return false;
  const peer_id here{from->next_peer_++};
  const peer_id there{to->next_peer_++};
  from->peers_[here.value] = {to, there};
  to->peers_[there.value] = {from, here};
  ++from->counters_.peers;
  ++to->counters_.peers;
  to->put(to->urgent_, up{there});
  from->put(from->urgent_, up{here});
  from->put(from->urgent_, connected{std::move(done), here});
  return true;
}

void loopback_engine::refuse(link::connected done, error why) {
  const std::lock_guard lock(mutex_);
  put(urgent_, connected{std::move(done), tl::unexpected(std::move(why))});
}

void loopback_engine::post(std::function<void()> what) {
  const std::lock_guard lock(mutex_);
  put(urgent_, std::move(what));
}

void loopback_engine::send(peer_id to, frame message, link::completion done) {
  result<encoded_header> header = encode(message, bounds_);
  std::uint64_t bytes = 0;
  for (const wire_tensor& tensor : message.tensors) bytes += tensor.bytes.bytes;
  std::shared_ptr<loopback_engine> other;
  arrival what;
  what.sender = weak_from_this();
  {
    const std::lock_guard lock(mutex_);
    if (!header)
      return put(urgent_, completed{std::move(done), tl::unexpected(std::move(header.error()))});
    const auto found = peers_.find(to.value);
    if (found == peers_.end() || found->second.closing) {
      error gone{errc::peer_lost, fmt::format("no peer {} any more", to.value)};
      return put(urgent_, completed{std::move(done), tl::unexpected(std::move(gone))});
    }
    other = found->second.other.lock();
    what.from = found->second.id_there;
    what.ticket = next_ticket_++;
    sends_[what.ticket] = {to, bytes, std::move(done)};
    counters_.add_in_flight(bytes);
  }
  what.header = std::move(*header);
  what.tensors = std::move(message.tensors);
  if (other && other->deposit(std::move(what), message.lane == lane::control)) return;
  lose(to, {errc::peer_lost, fmt::format("peer {} is gone: its link ended", to.value)});
}

bool loopback_engine::deposit(arrival what, bool control) {
  const std::lock_guard lock(mutex_);
  if (stopped_ || !peers_.contains(what.from.value)) return false;
  put(control ? urgent_ : ordinary_, std::move(what));
  return true;
}

void loopback_engine::close(peer_id which, const error& reason) {
  if (believes_dead(reason)) return drop(which, reason);
  std::shared_ptr<loopback_engine> other;
  farewell what;
  {
    const std::lock_guard lock(mutex_);
    const auto found = peers_.find(which.value);
    if (found == peers_.end() || std::exchange(found->second.closing, true)) return;
    other = found->second.other.lock();
    what = {found->second.id_there, reason};
  }
  // Our own "down" follows when the peer has come to the farewell.
  if (!other || !other->say_farewell(std::move(what))) lose(which, reason);
}

bool loopback_engine::say_farewell(farewell what) {
  const std::lock_guard lock(mutex_);
  if (stopped_ || !peers_.contains(what.from.value)) return false;
  put(ordinary_, std::move(what));
  return true;
}

void loopback_engine::delivered(std::uint64_t ticket, std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  auto found = sends_.extract(ticket);
  if (found.empty()) return;
  counters_.take_in_flight(found.mapped().bytes);
  counters_.bytes_sent += bytes;
  ++counters_.frames_sent;
  put(urgent_, completed{std::move(found.mapped().done), {}});
}

std::optional<loopback_engine::peer> loopback_engine::remove(peer_id which, const error& why) {
  const std::lock_guard lock(mutex_);
  // Sends first: whoever fails one because the peer is gone may come here before the peer's end.
  for (auto next = sends_.begin(); next != sends_.end();) {
    const auto current = next++;
    if (current->second.to != which) continue;
    counters_.take_in_flight(current->second.bytes);
    put(urgent_, completed{std::move(current->second.done), tl::unexpected(why)});
    sends_.erase(current);
  }
  auto found = peers_.extract(which.value);
  if (found.empty()) return std::nullopt;
  --counters_.peers;
  put(ordinary_, down{which, why});
  return std::move(found.mapped());
}

std::optional<loopback_engine::item> loopback_engine::take() {
  std::unique_lock lock(mutex_);
  wake_.wait(lock, [this] { return stopped_ || !urgent_.empty() || !ordinary_.empty(); });
  if (stopped_) return std::nullopt;
  std::deque<item>& queue = urgent_.empty() ? ordinary_ : urgent_;
  std::optional<item> out(std::move(queue.front()));
  queue.pop_front();
  return out;
}

void loopback_engine::run() {
  while (std::optional<item> next = take()) std::visit([this](auto& what) { tell(what); }, *next);
  cancel_all();
}

void loopback_engine::stop() {
  const std::lock_guard lock(mutex_);
  stopped_ = true;
  wake_.notify_one();
}

void loopback_engine::cancel_all() {
  const error why{errc::cancelled, "the link was destroyed"};
  std::map<std::uint64_t, peer> peers;
  std::map<std::uint64_t, pending_send> sends;
  std::deque<item> items;
  {
    const std::lock_guard lock(mutex_);
    peers.swap(peers_);
    sends.swap(sends_);
    items.swap(urgent_);
    counters_.peers = 0;
    counters_.bytes_in_flight = 0;
  }
  for (auto& what : items) {
    if (auto* done = std::get_if<completed>(&what)) tell(*done);
    if (auto* done = std::get_if<connected>(&what)) {
      done->how = tl::unexpected(why);
      tell(*done);
    }
  }
  for (auto& [ticket, send] : sends)
    if (send.done) send.done(tl::unexpected(why));
  for (auto& [id, gone] : peers) {
    const std::uint64_t id_there = gone.id_there.value;
    if (const auto other = gone.other.lock(); other && other.get() != this)
      other->lose(gone.id_there,
                  {errc::peer_lost, fmt::format("peer {} is gone: its link ended", id_there)});
  }
}

void loopback_engine::tell(up& what) {
  if (events_.on_peer_up) events_.on_peer_up(what.which);
}

void loopback_engine::tell(arrival& what) {
  result<frame> message = decode(what.header, bounds_);
  if (!message) {
    ++counters_.bad_frames;
    return drop(what.from, message.error());
  }
  std::uint64_t bytes = what.header.size();
  for (std::size_t i = 0; i < message->tensors.size(); ++i) {
    message->tensors[i].bytes = std::move(what.tensors[i].bytes);
    bytes += message->tensors[i].bytes.bytes;
  }
  ++counters_.frames_received;
  counters_.bytes_received += bytes;
  if (events_.on_frame) events_.on_frame(what.from, std::move(*message));
  if (const auto sender = what.sender.lock()) sender->delivered(what.ticket, bytes);
}

void loopback_engine::drop(peer_id which, const error& why) {
  const std::optional<peer> removed = remove(which, why);
  const auto other = removed ? removed->other.lock() : nullptr;
  if (!other) return;
  const std::uint64_t id_there = removed->id_there.value;
  other->lose(removed->id_there,
              {errc::peer_lost, fmt::format("peer {} closed the link: {}", id_there, why.text)});
}

void loopback_engine::tell(farewell& what) {
  const std::optional<peer> removed = remove(
      what.from, {errc::peer_lost,
                  fmt::format("peer {} closed the link: {}", what.from.value, what.reason.text)});
  if (!removed) return;
  if (const auto other = removed->other.lock()) other->lose(removed->id_there, what.reason);
}

void loopback_engine::tell(down& what) {
  if (events_.on_peer_down) events_.on_peer_down(what.which, std::move(what.why));
}

}  // namespace troupe::messages
