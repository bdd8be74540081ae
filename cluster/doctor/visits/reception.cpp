#include "cluster/doctor/visits/reception.hpp"

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <future>
#include <map>
#include <mutex>
#include <utility>

#include "actors/base/deadlines.hpp"
#include "actors/remote/neighbourhood.hpp"
#include "cluster/doctor/edges/link_channel.hpp"
#include "cluster/doctor/edges/words.hpp"
#include "cluster/membership/countdown_core.hpp"
#include "messages/base/log.hpp"

namespace troupe::cluster::doctor {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr milliseconds telling_interval{100};
constexpr milliseconds alive_interval{1000};

/// A process that has come, and where messages from the processes that it starts go.
struct seen_guest {
  peer_id peer;
  std::shared_ptr<visit_mailbox> box;
};

/// What a guest says of one of its processes.
void take_news(const messages::frame& said, visit_mailbox& box) {
  const auto& word = said.body.front().type;
  const auto* const process = field_of<std::string>(said, 0);
  if (process == nullptr) return;
  if (word == words::line) {
    const auto* const is_error = field_of<std::int64_t>(said, 1);
    const auto* const text = field_of<std::string>(said, 2);
    if (is_error != nullptr && text != nullptr)
      box.hear(*process, *is_error == 0 ? output_stream::out : output_stream::err, *text);
  } else if (word == words::end) {
    const auto* const code = field_of<std::int64_t>(said, 1);
    const auto* const signal = field_of<std::int64_t>(said, 2);
    if (code != nullptr && signal != nullptr)
      box.note_end(
          {.name = *process, .code = static_cast<int>(*code), .signal = static_cast<int>(*signal)});
  }
}

/// By messages to a guest, whose going is waited for at the end.
visit_means means_by(messages::link& link, const seen_guest& guest) {
  const auto send = [&link, peer = guest.peer](const char* word, messages::value::list fields) {
    link.send(peer, saying(word, std::move(fields)), {});
  };
  return {.start = [send](const std::string& process, const std::string& asked) -> result<void> {
            send(words::start, {{process}, {asked}});
            return {};
          },
          .kill = [send](const std::string& process) { send(words::kill, {{process}}); },
          .leave =
              [send, box = guest.box] {
                send(words::leave, {});
                std::unique_lock lock(box->mutex);
                box->changed.wait_for(lock, actors::usual_deadlines.examiner_end,
                                      [&box] { return box->lost.has_value(); });
              }};
}

}  // namespace

/// Shared with the link's thread, which the listener, destroyed before the rest, ends.
struct reception::state {
  explicit state(reception_settings of)
      : settings(std::move(of)), countdown(settings.patience), begun(steady_clock::now()) {}

  const reception_settings settings;
  std::mutex mutex;
  std::condition_variable changed;
  std::map<std::string, seen_guest> guests;  // by name
  countdown_core countdown;
  bool is_over = false;
  const steady_clock::time_point begun;
  std::unique_ptr<link_listener> listener;
  std::future<void> speaking;

  void hear(messages::link& by, peer_id peer, const messages::frame& said) {
    if (said.kind == messages::frame_kind::hello) return greet(by, peer, said);
    if (said.kind != messages::frame_kind::message || said.body.size() != 1) return;
    if (said.body.front().type == words::visit) return let_in(by, peer, said);
    if (const auto box = box_of(peer)) take_news(said, *box);
  }

  /// Of a process that comes to join the run.
  void greet(messages::link& by, peer_id peer, const messages::frame& hello) {
    const auto who = actors::read_hello(hello);
    if (!who) return by.close(peer, {errc::bad_frame, "a peer's hello is malformed"});
    const auto may = admit(*who);
    if (!may) note_refusal(may.error());
    by.close(peer, may ? error{errc::bad_config, doctor_is_here} : may.error());
  }

  result<void> admit(const actors::greeting& who) {
    if (auto may = check_name(who.name); !may) return may;
    if (who.build == settings.own.build) return {};
    return fail(errc::bad_config, words_on_other_build(who, settings.own));
  }

  result<void> check_name(const std::string& name) {
    if (std::ranges::find(settings.names, name) == settings.names.end())
      return fail(errc::bad_config, words_on_unknown_node(name, settings.names));
    const std::lock_guard lock(mutex);
    if (!guests.contains(name)) return {};
    return fail(errc::bad_config, "the name '" + name +
                                      "' is taken: doctor examines a process that has come as "
                                      "that; give each process its own name");
  }

  void let_in(messages::link& by, peer_id peer, const messages::frame& said) {
    const auto* const name = field_of<std::string>(said, 0);
    if (name == nullptr) return by.close(peer, {errc::bad_frame, "a guest has a name"});
    if (auto may = check_name(*name); !may) return by.close(peer, may.error());
    const std::lock_guard lock(mutex);
    guests.emplace(*name, seen_guest{peer, std::make_shared<visit_mailbox>()});
    changed.notify_all();
  }

  std::shared_ptr<visit_mailbox> box_of(peer_id peer) {
    const std::lock_guard lock(mutex);
    for (const auto& [name, guest] : guests)
      if (guest.peer == peer) return guest.box;
    return nullptr;
  }

  void note_gone(peer_id peer, const error& why) {
    if (const auto box = box_of(peer))
      box->note_lost({errc::peer_lost, "the process there is gone: " + why.text +
                                           "; see what it wrote, and run doctor again"});
  }

  void note_refusal(const error& why) {
    const std::lock_guard lock(mutex);
    countdown.refused(why.text);
  }

  // Under the lock.
  std::vector<std::string> missing() const {
    std::vector<std::string> out;
    for (const auto& name : settings.names)
      if (!guests.contains(name)) out.push_back(name);
    return out;
  }

  /// Tells guests that it is there, and logs who is missing, until it is over.
  void speak() {
    std::unique_lock lock(mutex);
    for (auto next = begun; !is_over; changed.wait_for(lock, telling_interval)) {
      const auto now = steady_clock::now();
      tell_missing(std::chrono::duration_cast<milliseconds>(now - begun));
      if (now < next) continue;
      next = now + alive_interval;
      for (const auto& [name, guest] : guests)
        listener->link().send(guest.peer, saying(words::alive, {}), {});
    }
  }

  // Under the lock, where somebody is still waited for.
  void tell_missing(milliseconds waited) {
    if (waited >= settings.patience) return;
    if (const auto line = countdown.tick(waited, missing())) log::info(*line);
  }

  // Under the lock.
  std::string words_on_absence(const std::string& name) const {
    const auto seconds = std::chrono::ceil<std::chrono::seconds>(settings.patience);
    const auto& refusal = countdown.last_refusal();
    return "it has not joined within " + std::to_string(seconds.count()) + " s" +
           (refusal.empty() ? "" : " (a connection was refused: " + refusal + ")") +
           ", so that its machine is not examined; start it while doctor waits: " +
           how_to_join(name, listener->address());
  }
};

reception::reception(std::unique_ptr<state> of) : state_(std::move(of)) {}

reception::~reception() {
  {
    const std::lock_guard lock(state_->mutex);
    state_->is_over = true;
    state_->changed.notify_all();
  }
  state_->speaking.wait();
}

const std::string& reception::address() const noexcept {
  return state_->listener->address();
}

result<std::unique_ptr<reception>> reception::open(reception_settings settings) {
  auto own = std::make_unique<state>(std::move(settings));
  auto* const at = own.get();
  auto listener = link_listener::open(
      at->settings.link, at->settings.listen,
      {.on_frame = [at](messages::link& by, peer_id peer,
                        const messages::frame& said) { at->hear(by, peer, said); },
       .on_gone = [at](peer_id peer, const error& why) { at->note_gone(peer, why); },
       .on_refused = [at](const error& why) { at->note_refusal(why); }});
  if (!listener) return tl::unexpected(listener.error());
  own->listener = std::move(*listener);
  for (const auto& name : at->settings.names)
    log::info(name + " may join now: " + how_to_join(name, own->listener->address()));
  own->speaking = std::async(std::launch::async, [at] { at->speak(); });
  return std::unique_ptr<reception>(new reception(std::move(own)));
}

result<std::unique_ptr<node_visit>> reception::await(const std::string& name) {
  auto& at = *state_;
  std::unique_lock lock(at.mutex);
  const auto has_come = [&] { return at.guests.contains(name); };
  if (!at.changed.wait_until(lock, at.begun + at.settings.patience, has_come))
    return fail(errc::timed_out, at.words_on_absence(name));
  const auto& guest = at.guests.at(name);
  return std::make_unique<node_visit>(guest.box, means_by(at.listener->link(), guest));
}

}  // namespace troupe::cluster::doctor
