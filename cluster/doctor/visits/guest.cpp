#include "cluster/doctor/visits/guest.hpp"

#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string_view>
#include <utility>
#include <variant>

#include "actors/base/deadlines.hpp"
#include "cluster/doctor/edges/words.hpp"
#include "cluster/doctor/facts/facts_text.hpp"
#include "cluster/hosts/host_addresses.hpp"
#include "cluster/launch/agents/secret_pipe.hpp"
#include "cluster/launch/child_process.hpp"
#include "cluster/launch/process_group.hpp"
#include "messages/base/log.hpp"
#include "messages/link/link_options.hpp"

namespace troupe::cluster::doctor {
namespace {

constexpr auto longest_silence = actors::usual_deadlines.silent_doctor;

/// Where this node would listen for others, as serve_as_node has it.
void put_own_listening(requests::listen& asked, const guest_settings& as) {
  if (!opens_port(as.link.transport) || is_loopback(as.address)) return;
  asked.wanted = as.listen;
  asked.peer = host_of(as.address);
}

/// The guest of one doctor. Orders come on the link's thread and are carried out on the owner's;
/// what processes do is told to the doctor on their own thread.
class guest {
 public:
  explicit guest(const guest_settings& as) : as_(as) {}
  guest(const guest&) = delete;
  guest& operator=(const guest&) = delete;

  result<void> open();
  result<void> run();

 private:
  result<void> connect();
  void hear(messages::frame order);
  /// The next order; nothing once the doctor is gone, or silent.
  std::optional<messages::frame> next();
  void start(const std::string& process, const std::string& text);
  result<void> try_to_start(const std::string& process, const std::string& text);
  void tell_line(std::string_view process, output_stream stream, std::string_view text);
  void tell_end(const child_exit& how);
  void tell(const char* word, messages::value::list fields);

  const guest_settings& as_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<messages::frame> orders_;
  std::chrono::steady_clock::time_point heard_ = std::chrono::steady_clock::now();
  std::optional<error> lost_;
  std::optional<result<peer_id>> doctor_;  // not changed any more once it is connected
  std::unique_ptr<messages::link> link_;   // its thread calls into everything above
  std::optional<process_group> group_;     // and this one's into the link
};

result<void> guest::open() {
  auto made = messages::make_link(
      link_options_of(as_.link),
      {.on_peer_up = [](peer_id) {},
       .on_frame = [this](peer_id, messages::frame order) { hear(std::move(order)); },
       .on_peer_down =
           [this](peer_id, const error& why) {
             const std::lock_guard lock(mutex_);
             lost_ = why;
             changed_.notify_all();
           }});
  if (!made) return tl::unexpected(made.error());
  link_ = std::move(*made);
  if (auto connected = connect(); !connected) return connected;
  auto group = process_group::create(
      {.on_exit = [this](const child_exit& how) { tell_end(how); },
       .on_line = [this](std::string_view process, output_stream stream,
                         std::string_view text) { tell_line(process, stream, text); }});
  if (!group) return tl::unexpected(group.error());
  group_.emplace(std::move(*group));
  tell(words::visit, {{as_.name}});
  return {};
}

result<void> guest::connect() {
  constexpr auto limit = actors::usual_deadlines.connect;
  link_->connect(as_.address, limit, [this](result<peer_id> peer) {
    const std::lock_guard lock(mutex_);
    doctor_ = std::move(peer);
    changed_.notify_all();
  });
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, 2 * limit, [this] { return doctor_.has_value(); });
  if (!doctor_) return fail(errc::timed_out, "no answer from " + as_.address);
  if (!*doctor_) return tl::unexpected(doctor_->error());
  return {};
}

result<void> guest::run() {
  while (const auto order = next()) {
    const auto& word = order->body.front().type;
    if (word == words::leave) return {};
    const auto* const process = field_of<std::string>(*order, 0);
    const auto* const text = field_of<std::string>(*order, 1);
    if (word == words::start && process != nullptr && text != nullptr)
      start(*process, *text);
    else if (word == words::kill && process != nullptr)
      group_->kill(*process);
  }
  const std::lock_guard lock(mutex_);
  if (lost_->code == errc::bad_config)  // another process has come as this one meanwhile
    return fail(errc::bad_config,
                "troupe doctor at " + as_.address + " refuses this process: " + lost_->text);
  return fail(errc::peer_lost, "troupe doctor at " + as_.address +
                                   " is gone before it had examined this machine: " + lost_->text +
                                   "; join again");
}

void guest::hear(messages::frame order) {
  const std::lock_guard lock(mutex_);
  heard_ = std::chrono::steady_clock::now();
  const bool is_one = order.body.size() == 1 && order.body.front().type != words::alive;
  if (is_one) orders_.push_back(std::move(order));
  changed_.notify_all();
}

std::optional<messages::frame> guest::next() {
  std::unique_lock lock(mutex_);
  while (orders_.empty() && !lost_) {
    const auto end = heard_ + longest_silence;
    if (std::chrono::steady_clock::now() >= end)
      lost_ = error{errc::timed_out, "nothing was heard of it for " +
                                         std::to_string(longest_silence.count()) + " s"};
    else
      changed_.wait_until(lock, end);
  }
  if (orders_.empty()) return std::nullopt;
  auto order = std::move(orders_.front());
  orders_.pop_front();
  return order;
}

void guest::start(const std::string& process, const std::string& text) {
  const auto started = try_to_start(process, text);
  if (started) return;
  tell_line(process, output_stream::err, started.error().text);
  tell_end({.name = process, .code = 1});
}

result<void> guest::try_to_start(const std::string& process, const std::string& text) {
  auto asked = decode_request(text);
  if (!asked) return tl::unexpected(asked.error());
  if (auto* const listen = std::get_if<requests::listen>(&*asked)) put_own_listening(*listen, as_);
  const auto secret = secret_pipe(as_.link.secret);
  if (!secret) return tl::unexpected(secret.error());
  return group_->start({.name = process,
                        .arguments = {examine_word, encode(*asked)},
                        .environment = {{started_by, std::to_string(::getpid())}},
                        .handed_over = secret->get()});
}

void guest::tell_line(std::string_view process, output_stream stream, std::string_view text) {
  const std::int64_t is_error = stream == output_stream::err ? 1 : 0;
  tell(words::line, {{std::string(process)}, {is_error}, {std::string(text)}});
}

void guest::tell_end(const child_exit& how) {
  tell(words::end, {{how.name}, {std::int64_t{how.code}}, {std::int64_t{how.signal}}});
}

void guest::tell(const char* word, messages::value::list fields) {
  link_->send(**doctor_, saying(word, std::move(fields)), {});
}

}  // namespace

bool has_met_doctor(const error& why) {
  return why.code == errc::bad_config && why.text.ends_with(doctor_is_here);
}

result<void> serve_doctor(const guest_settings& as) {
  const auto named = [&as](const error& why) { return error_about(as.name, why); };
  guest here(as);
  if (auto opened = here.open(); !opened) return opened.map_error(named);
  log::info(as.name + ": troupe doctor at " + as.address + " examines this machine for the run");
  if (auto served = here.run(); !served) return served.map_error(named);
  log::info(as.name + ": troupe doctor has examined this machine; join again for the run itself");
  return {};
}

}  // namespace troupe::cluster::doctor
