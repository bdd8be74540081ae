#include "cluster/doctor/edges/link_channel.hpp"

#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "actors/base/deadlines.hpp"
#include "cluster/doctor/edges/words.hpp"
#include "cluster/launch/agents/wall_clock.hpp"

namespace troupe::cluster::doctor {
namespace {

using messages::frame;
using messages::frame_kind;

constexpr auto waits = actors::usual_deadlines;
constexpr int blocks_in_flight = 4;
constexpr int clock_exchanges = 20;

std::string words_on_silence(std::chrono::seconds time) {
  return "no answer within " + std::to_string(time.count()) + " s";
}

frame request_of(const char* word) {
  frame out;
  out.kind = frame_kind::request;
  out.body.push_back({word, {}});
  return out;
}

frame block_of(std::byte* data, std::size_t bytes) {
  frame out;
  messages::wire_tensor tensor;
  tensor.descriptor = {messages::dtype::u8, {static_cast<std::int64_t>(bytes)}, {1}, {}};
  tensor.bytes = {data, bytes, nullptr};
  out.tensors.push_back(std::move(tensor));
  return out;
}

}  // namespace

/// Shared with the link's thread; the link, last, is destroyed first.
struct link_channel::state {
  std::mutex mutex;
  std::condition_variable changed;
  std::map<std::uint64_t, frame> answers;
  std::optional<error> lost;
  std::optional<result<peer_id>> peer;
  std::uint64_t next_request = 1;
  int in_flight = 0;
  std::vector<std::byte> data;
  std::unique_ptr<messages::link> link;

  void note_lost(const error& why) {
    const std::lock_guard lock(mutex);
    if (!lost) lost = why;
    changed.notify_all();
  }

  /// Errors: timed_out; peer_lost with what became of it.
  template <class Done>
  result<void> wait(std::unique_lock<std::mutex>& lock, const Done& done) {
    changed.wait_for(lock, waits.probe_answer, [&] { return done() || lost; });
    if (done()) return {};
    if (lost) return tl::unexpected(*lost);
    return fail(errc::timed_out, words_on_silence(waits.probe_answer));
  }
};

link_channel::link_channel(std::unique_ptr<state> of) : state_(std::move(of)) {}
link_channel::~link_channel() = default;

result<std::unique_ptr<link_channel>> link_channel::connect(messages::link_options options,
                                                            const std::string& address) {
  auto own = std::make_unique<state>();
  state* const at = own.get();
  auto made = messages::make_link(
      std::move(options),
      {.on_peer_up = [](peer_id) {},
       .on_frame =
           [at](peer_id, frame message) {
             const std::lock_guard lock(at->mutex);
             at->answers[message.request_id] = std::move(message);
             at->changed.notify_all();
           },
       .on_peer_down = [at](peer_id, const error& why) { at->note_lost(why); }});
  if (!made) return tl::unexpected(made.error());
  own->link = std::move(*made);
  own->link->connect(address, waits.probe_connect, [at](result<peer_id> peer) {
    const std::lock_guard lock(at->mutex);
    at->peer = std::move(peer);
    at->changed.notify_all();
  });
  std::unique_lock lock(own->mutex);
  own->changed.wait_for(lock, waits.probe_connect + waits.probe_answer,
                        [at] { return at->peer.has_value(); });
  if (!own->peer) return fail(errc::timed_out, words_on_silence(waits.probe_connect));
  if (!*own->peer) return tl::unexpected(own->peer->error());
  lock.unlock();
  return std::unique_ptr<link_channel>(new link_channel(std::move(own)));
}

result<frame> link_channel::ask(frame what) {
  auto& all = *state_;
  std::unique_lock lock(all.mutex);
  const auto number = what.request_id = all.next_request++;
  lock.unlock();
  all.link->send(**all.peer, std::move(what), {});
  lock.lock();
  const auto heard = all.wait(lock, [&] { return all.answers.contains(number); });
  if (!heard) return tl::unexpected(heard.error());
  return std::move(all.answers.extract(number).mapped());
}

result<void> link_channel::round_trips(int count) {
  for (int i = 0; i < count; ++i)
    if (auto answer = ask(request_of(words::echo)); !answer) return tl::unexpected(answer.error());
  return {};
}

result<void> link_channel::push(std::size_t bytes, int count) {
  auto& all = *state_;
  all.data.resize(bytes);
  for (int i = 0; i < count; ++i) {
    {
      std::unique_lock lock(all.mutex);
      if (auto room = all.wait(lock, [&] { return all.in_flight < blocks_in_flight; }); !room)
        return room;
      ++all.in_flight;
    }
    all.link->send(**all.peer, block_of(all.data.data(), bytes), [at = &all](const result<void>&) {
      const std::lock_guard lock(at->mutex);
      --at->in_flight;
      at->changed.notify_all();
    });
  }
  return round_trips(1);  // answered when all before it have come
}

result<clock_difference> link_channel::compare_clocks() {
  clock_difference best{.ahead_ns = 0, .error_ns = std::int64_t{1} << 62};
  for (int i = 0; i < clock_exchanges; ++i) {
    const auto before = wall_clock_ns();
    const auto answer = ask(request_of(words::clock));
    const auto after = wall_clock_ns();
    if (!answer) return tl::unexpected(answer.error());
    const auto* const theirs = field_of<std::int64_t>(*answer, 0);
    if (theirs == nullptr) return fail(errc::bad_frame, "the listener did not say its time");
    const auto half = (after - before) / 2;
    if (half < best.error_ns) best = {*theirs - before - half, half};
  }
  return best;
}

result<raw_offer> link_channel::ask_for_raw(const std::string& own_address) {
  auto question = request_of(words::raw);
  question.body.front().fields.push_back({own_address});
  const auto answer = ask(std::move(question));
  if (!answer) return tl::unexpected(answer.error());
  const auto* const kind = field_of<std::string>(*answer, 0);
  const auto* const address = field_of<std::string>(*answer, 1);
  const auto* const token = field_of<std::int64_t>(*answer, 2);
  if (kind == nullptr || address == nullptr || token == nullptr)
    return fail(errc::bad_frame, "the listener did not say what is below it");
  if (kind->empty()) return fail(errc::transport_missing, *address);
  return raw_offer{*kind, *address, static_cast<std::uint64_t>(*token)};
}

}  // namespace troupe::cluster::doctor
