#include "cluster/membership/worker_group.hpp"

#include <caf/actor.hpp>
#include <caf/send.hpp>
#include <chrono>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

#include "actors/base/errors.hpp"
#include "actors/futures/combine.hpp"
#include "actors/futures/requester.hpp"
#include "actors/messages/common.hpp"
#include "actors/protocol.hpp"
#include "engine/base/torch_error.hpp"
#include "messages/base/log.hpp"

namespace troupe::cluster {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr std::chrono::seconds join_timeout{30};
constexpr std::chrono::minutes build_deadline{10};
constexpr milliseconds look_every{50};   // for a worker that ended while it was waited for
constexpr milliseconds last_word{1000};  // the system's word on a lost peer comes within

}  // namespace

result<std::unique_ptr<worker_group>> worker_group::start(std::shared_ptr<workers> where,
                                                          const std::vector<std::string>& names,
                                                          const std::string& listen,
                                                          actors::progress_settings progress) try {
  if (auto enough = actors::check_threads(); !enough) return tl::unexpected(enough.error());
  std::unique_ptr<worker_group> group(new worker_group(std::move(where), std::move(progress)));
  if (auto opened = group->open(names, listen); !opened) return tl::unexpected(opened.error());
  return group;
} catch (const std::exception& problem) {
  return fail(errc::io_failed, "the run's own node cannot start: " + engine::reason_of(problem));
}

worker_group::worker_group(std::shared_ptr<workers> where, actors::progress_settings progress)
    : system_(config_), workers_(std::move(where)), progress_(std::move(progress)) {
  actors::add_protocol(types_);
}

result<void> worker_group::open(const std::vector<std::string>& names, const std::string& listen) {
  const auto on_node_down = [this](const std::string&, const error& why) {
    if (why.code != errc::cancelled) lost_ = true;
  };
  auto node = actors::node::start(
      system_, types_,
      {.name = "trainer",
       .listen = listen,
       .on_node_down = on_node_down,
       .on_told = [this](const auto& worker, const auto& told) { on_told(worker, told); }},
      workers_->trainer_link());
  if (!node) return tl::unexpected(node.error());
  node_ = std::move(*node);
  count_ = names.size();
  for (const auto& name : names) {
    if (auto started = workers_->start(name, node_->address()); !started) return started;
  }
  for (const auto& name : names) {
    if (auto here = await(name); !here) return here;
    const auto host = node_->find(name, "host", join_timeout);
    if (!host) return tl::unexpected(explain(host.error()));
    hosts_.push_back(*host);
  }
  return {};
}

result<void> worker_group::await(const std::string& worker) {
  const auto deadline = steady_clock::now() + join_timeout;
  while (!node_->wait_for(worker, look_every)) {
    if (auto ended = workers_->failure()) return fail(errc::peer_lost, *ended);
    if (steady_clock::now() > deadline)
      return fail(errc::timed_out, worker + " has not joined the run within " +
                                       std::to_string(join_timeout.count()) + " s");
  }
  return {};
}

result<std::vector<actors::stage_actor>> worker_group::build(
    const std::vector<actors::build_stage>& orders) {
  actors::requester ask(system_, [this](const caf::node_id& id) { return node_->name_of(id); });
  std::vector<actors::future<actors::stage_built>> answers;
  for (std::size_t i = 0; i < orders.size(); ++i)
    answers.push_back(ask.request<actors::stage_built>(
        caf::actor_cast<actors::host_actor>(hosts_.at(i)), orders[i], build_deadline));
  const auto built = actors::all(std::move(answers)).get();
  if (!built) return tl::unexpected(explain(built.error()));
  std::vector<actors::stage_actor> stages;
  for (const auto& each : *built)
    stages.push_back(caf::actor_cast<actors::stage_actor>(each.stage));
  return stages;
}

void worker_group::on_told(const std::string& worker, const std::vector<messages::element>& told) {
  for (const auto& each : told) {
    if (const auto report = actors::to_report(each)) perform(progress_.heard(worker, *report));
  }
}

void worker_group::perform(const actors::progress_core::effects& what) {
  for (const auto& effect : what) {
    if (const auto* slow = std::get_if<actors::progress_core::slow>(&effect)) {
      log::warning(slow->text);
    } else if (const auto* on = std::get_if<actors::progress_core::went_on>(&effect)) {
      log::info(on->text);
    } else if (const auto* hung = std::get_if<actors::progress_core::hung>(&effect)) {
      {
        const std::scoped_lock lock(mutex_);
        if (!hung_) hung_ = error{errc::peer_lost, hung->why.text};
      }
      log::warning(hung->why.text + ": it is lost");
      node_->lose(hung->node, hung->why);
      workers_->kill(hung->node);
    }
  }
}

error worker_group::explain(const error& why) const {
  if (why.code != errc::peer_lost) return why;
  {
    const std::scoped_lock lock(mutex_);
    if (hung_) return *hung_;
  }
  const auto deadline = steady_clock::now() + last_word;
  for (;;) {
    if (auto ended = workers_->failure())
      return {errc::peer_lost, node_->stood_still() ? *ended + ": " + why.text : *ended};
    if (steady_clock::now() > deadline) return why;
    std::this_thread::sleep_for(look_every);
  }
}

worker_group::~worker_group() {
  const bool all_here = hosts_.size() == count_;
  for (const auto& host : std::exchange(hosts_, {}))
    caf::anon_send(caf::actor_cast<caf::actor>(host), actors::shut_down{});
  system_.await_all_actors_done();
  // The trainer leaves last. But a worker whose host was never found ends when it hears us leave.
  if (!all_here) node_.reset();
  workers_->join(!lost_);
}

}  // namespace troupe::cluster
