#include "tests/sim/nodes/world.hpp"

#include <algorithm>
#include <caf/all.hpp>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>

#include "actors/messages/common.hpp"
#include "tests/all_messages.hpp"
#include "tests/sim/nodes/scarce_memory.hpp"

namespace troupe::tests {
namespace {

using namespace std::chrono_literals;

/// Blocks from this size on count where memory runs out.
constexpr std::size_t least_refused = 64;

actors::liveness_settings impatient() {
  // All are one process to the system, which would call a node that is stopped here alive.
  return {.interval = live_network::beat,
          .silence = silence,
          .suspicion = silence / 2,
          .ask_system = false};
}

const char* text_of(trouble what) {
  switch (what) {
    case trouble::crash:
      return "crashes";
    case trouble::stop:
      return "is stopped";
    case trouble::hiccup:
      return "is stopped for a moment";
    case trouble::parting:
      return "is cut off";
    case trouble::short_parting:
      return "is cut off for a moment";
    case trouble::no_memory:
      return "has sent, memory is refused";
  }
  return "";
}

}  // namespace

messages::simulated_options draw_network(draws& from, std::uint64_t seed) {
  const std::vector<std::uint32_t> inlined{0, 256, 8 << 10};
  const std::vector<std::uint64_t> chunks{64 << 10, 8 << 20};
  return {.seed = seed,
          .most_delay = std::chrono::microseconds{from.one_of<int>({20, 200, 2000})},
          .repeats = from.one_of<double>({0, 0.05}),
          .linger = 100ms,
          .chunk_bytes = from.one_of(chunks),
          .inline_bytes = from.one_of(inlined)};
}

std::string to_text(const std::vector<fault>& all) {
  std::string text;
  for (const auto& each : all) {
    text += text.empty() ? "" : "; ";
    text += each.whom + " " + text_of(each.what) + " (frame " + std::to_string(each.frame);
    if (each.what == trouble::no_memory) text += ", block " + std::to_string(each.block);
    text += ")";
  }
  return text.empty() ? "nothing befell anybody" : text;
}

std::vector<fault> draw_faults(draws& from, const std::map<std::string, std::uint64_t>& sent) {
  std::vector<trouble> known{trouble::crash,  trouble::crash,   trouble::stop,
                             trouble::hiccup, trouble::parting, trouble::short_parting};
  if (scarce_memory::is_here()) known.push_back(trouble::no_memory);
  std::vector<fault> all;
  const std::uint64_t count = from.one_in(4) ? 2 : 1;
  while (all.size() < count) {
    const auto whom = std::next(sent.begin(), static_cast<std::ptrdiff_t>(from.below(sent.size())));
    all.push_back(
        {from.one_of(known), whom->first, from.from_to(1, whom->second + 1), from.from_to(1, 40)});
  }
  return all;
}

process::process(const std::string& of, live_network& network, const messages::limits& bounds)
    : name(of), system(config) {
  const auto on_node_down = [this](const std::string& other, const error& why) {
    const std::scoped_lock lock(mutex_);
    if (!lost_.emplace(other, why).second) contradiction_ = name + " lost " + other + " twice";
  };
  auto started = actors::node::start(system, all_messages(),
                                     {.name = name,
                                      .on_node_down = on_node_down,
                                      .liveness = impatient(),
                                      .keep_time = network.timekeeper_of(name)},
                                     network.link_of(name, bounds));
  if (!started) throw std::runtime_error(started.error().text);
  node = std::move(*started);
}

process::~process() {
  if (host) caf::anon_send(host, actors::shut_down{});
  host = nullptr;
  system.await_all_actors_done();
  node.reset();  // it tells us of others to the end
}

std::map<std::string, error> process::lost() {
  const std::scoped_lock lock(mutex_);
  return lost_;
}

std::string process::contradiction() {
  const std::scoped_lock lock(mutex_);
  return contradiction_;
}

world::world(const std::vector<std::string>& names, const messages::simulated_options& options)
    : network_(options) {
  for (const auto& name : names)
    processes_.emplace(name, std::make_unique<process>(name, network_, messages::limits{}));
}

world::~world() {
  scarce_memory::relieve();
  network_.relieve();
  processes_.clear();
}

std::vector<std::string> world::names() const {
  std::vector<std::string> all;
  for (const auto& [name, each] : processes_) all.push_back(name);
  return all;
}

void world::plant(const std::vector<fault>& all) {
  for (const auto& each : all)
    network_.when_sent(each.whom, each.frame, [this, each] { befall(each); });
}

/// In the network's thread.
void world::befall(const fault& what) {
  {
    const std::scoped_lock lock(mutex_);
    happened_.push_back(what);
  }
  switch (what.what) {
    case trouble::crash:
      return network_.crash(what.whom);
    case trouble::stop:
      return network_.pause(what.whom, 2 * silence);
    case trouble::hiccup:
      return network_.pause(what.whom, silence / 8);
    case trouble::parting:
      return network_.part({what.whom}, 2 * silence);
    case trouble::short_parting:
      return network_.part({what.whom}, silence / 8);
    case trouble::no_memory:
      return scarce_memory::refuse(what.block, least_refused);
  }
}

void world::end_plans() {
  network_.forget_plans();
  scarce_memory::relieve();
}

std::vector<fault> world::happened() {
  const std::scoped_lock lock(mutex_);
  return happened_;
}

std::map<std::string, std::uint64_t> world::sent() {
  std::map<std::string, std::uint64_t> all;
  for (const auto& [name, each] : processes_) all.emplace(name, network_.sent_by(name));
  return all;
}

std::string world::fault_of_losses() {
  std::set<std::string> struck;
  for (const auto& each : happened()) {
    if (each.what == trouble::no_memory) return "";  // any connection may have broken for that
    if (each.takes_nodes()) struck.insert(each.whom);
  }
  for (const auto& [name, here] : processes_) {
    if (const auto wrong = here->contradiction(); !wrong.empty()) return wrong;
    for (const auto& [other, why] : here->lost())
      if (!struck.contains(name) && !struck.contains(other))
        return name + " lost " + other + " for no reason: " + why.text;
  }
  return "";
}

std::string fault_of_error(const error& why, const std::vector<fault>& happened,
                           const std::set<errc>& may) {
  const auto what = std::string(describe(why.code)) + " (" + why.text + ")";
  bool names = false, no_memory = false;
  for (const auto& each : happened) {
    if (each.what == trouble::no_memory) no_memory = true;
    // Who was stopped or cut off takes others for lost, and may say so later. Who was not greeted
    // has no name yet.
    const bool confused = each.what == trouble::stop || each.what == trouble::parting;
    const auto has = [&](const std::string& words) {
      return why.text.find(words) != std::string::npos;
    };
    if (each.takes_nodes() &&
        (has("'" + each.whom + "'") || has("the node at ") || (confused && has("node '"))))
      names = true;
  }
  if (no_memory && why.text.find("memory") != std::string::npos) return "";
  const bool is_loss = why.code == errc::peer_lost || why.code == errc::timed_out;
  if (is_loss && names) return "";
  if (may.contains(why.code)) return "";
  return "it failed for another reason than what befell it: " + what;
}

watchdog::watchdog(std::string what) : what_(std::move(what)), thread_([this] { watch(); }) {}

watchdog::~watchdog() {
  {
    const std::scoped_lock lock(mutex_);
    is_over_ = true;
  }
  ended_.notify_one();
  thread_.join();
}

void watchdog::doing(const std::string& what) {
  const std::scoped_lock lock(mutex_);
  doing_ = what;
}

void watchdog::watch() {
  std::unique_lock lock(mutex_);
  if (ended_.wait_for(lock, 4 * patience, [this] { return is_over_; })) return;
  std::fprintf(stderr, "%s: still %s after %lld s; nothing may wait for ever\n", what_.c_str(),
               doing_.c_str(), static_cast<long long>(4 * patience.count()));
  std::abort();
}

}  // namespace troupe::tests
