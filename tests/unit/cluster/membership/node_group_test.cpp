#include "cluster/membership/node_group.hpp"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <caf/actor_addr.hpp>
#include <caf/actor_cast.hpp>
#include <caf/actor_control_block.hpp>
#include <caf/send.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <chrono>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <semaphore>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "actors/base/errors.hpp"
#include "actors/futures/requester.hpp"
#include "actors/interfaces.hpp"
#include "actors/messages/recovery.hpp"
#include "actors/remote/progress_board.hpp"
#include "cluster/membership/outliving/invitation.hpp"
#include "cluster/membership/stage_node.hpp"
#include "messages/descriptor.hpp"
#include "tests/refusal.hpp"
#include "tests/unit/cluster/membership/watched_threads.hpp"
#include "tests/unit/heard_stderr.hpp"

using namespace troupe;
using namespace troupe::cluster;
using Catch::Matchers::ContainsSubstring;
using std::chrono::steady_clock;
using tests::watched_threads;

namespace {

/// Nodes in threads, and the board of each, by its name.
struct telling_nodes {
  telling_nodes() {
    threads->spawn = [this](auto& system, const auto& here, auto on_shut_down) {
      const std::scoped_lock lock(mutex);
      boards[here.node.name()] = here.progress;
      return stage_host({})(system, here, std::move(on_shut_down));
    };
  }

  const std::shared_ptr<watched_threads> threads = std::make_shared<watched_threads>();
  std::mutex mutex;
  std::map<std::string, std::shared_ptr<actors::progress_board>> boards;
};

/// Loses the only stage of a group, and waits until the group knows.
void lose_only_stage(node_group& group) {
  group.lose(0, {errc::peer_lost, "it is of no use any more"});
  REQUIRE(group.lost(std::chrono::seconds(10)).size() == 1);
}

/// From here on whoever writes to standard error waits until it is read.
class full_stderr {
 public:
  full_stderr() {
    REQUIRE(::pipe2(ends_.data(), O_CLOEXEC | O_NONBLOCK) == 0);
    const std::string page(4096, ' ');
    while (::write(ends_[1], page.data(), page.size()) > 0) {
    }
    REQUIRE(::fcntl(ends_[1], F_SETFL, 0) == 0);
    REQUIRE(::dup2(ends_[1], STDERR_FILENO) == STDERR_FILENO);
  }
  full_stderr(const full_stderr&) = delete;
  full_stderr& operator=(const full_stderr&) = delete;
  ~full_stderr() {
    for (const int each : {usual_, ends_[0], ends_[1]}) ::close(each);
  }

  /// Reads until this text has come, or for ten seconds. Then standard error is restored.
  void read_until(const std::string& text) {
    const auto end = steady_clock::now() + std::chrono::seconds(10);
    std::array<char, 4096> some{};
    for (std::string all; all.find(text) == std::string::npos && steady_clock::now() < end;) {
      const auto count = ::read(ends_[0], some.data(), some.size());
      if (count > 0)
        all.append(some.data(), static_cast<std::size_t>(count));
      else
        std::this_thread::yield();
    }
    ::dup2(usual_, STDERR_FILENO);
  }

 private:
  const int usual_ = ::dup(STDERR_FILENO);
  std::array<int, 2> ends_{-1, -1};
};

}  // namespace

TEST_CASE("the end of a node counts as no failure from before the first is told to end") {
  const auto nodes = std::make_shared<watched_threads>();
  {
    const auto group = node_group::start(nodes, {"stage-0", "stage-1", "stage-2"}, "");
    REQUIRE(group);
    CHECK(nodes->ended == 0);
  }
  CHECK(nodes->ended == 3);
  CHECK(nodes->failures == 0);
}

TEST_CASE("a node whose host has ended is lost with all that the host has spawned, and says why") {
  caf::actor_addr host;
  std::promise<error> failed;
  const auto nodes = std::make_shared<watched_threads>();
  nodes->spawn = [&host](auto& system, const auto& here, auto on_shut_down) {
    const auto spawned = stage_host({})(system, here, std::move(on_shut_down));
    host = spawned->address();
    return spawned;
  };
  nodes->on_failure = [&failed](const error& why) { failed.set_value(why); };
  const auto group = node_group::start(nodes, {"stage-0"}, "");
  REQUIRE(group);
  caf::strong_actor_ptr keeper;
  {
    actors::requester ask((*group)->system());
    const auto opened = ask.request<actors::keeper_opened>(
                               caf::actor_cast<actors::host_actor>((*group)->hosts().front()),
                               actors::open_keeper{}, std::chrono::seconds(10))
                            .get();
    REQUIRE(opened);
    keeper = opened->keeper;
  }
  std::promise<error> kept;
  keeper->get()->attach_functor(
      [&kept](const caf::error& why) { kept.set_value(actors::from_caf(why)); });
  caf::anon_send_exit(host, caf::exit_reason::kill);
  CHECK((*group)->lost(std::chrono::seconds(10)) == std::vector<std::size_t>{0});
  auto end_of_keeper = kept.get_future();
  REQUIRE(end_of_keeper.wait_for(std::chrono::seconds(10)) == std::future_status::ready);
  CHECK(end_of_keeper.get().code == errc::peer_lost);
  auto ended = failed.get_future();
  REQUIRE(ended.wait_for(std::chrono::seconds(10)) == std::future_status::ready);
  const auto why = ended.get();
  CHECK(why.code == errc::handler_failed);
  CHECK_THAT(why.text, ContainsSubstring("stage-0: its host has ended: "));
}

TEST_CASE("a node that cannot be started counts as lost, and another one is tried") {
  const auto nodes = std::make_shared<watched_threads>();
  int tries = 0;
  nodes->start_another = [&](const auto& name, const auto& trainer) -> result<void> {
    if (++tries == 1) return fail(errc::io_failed, "Resource temporarily unavailable");
    return nodes->start(name, trainer);
  };
  const auto group = node_group::start(nodes, {"stage-0"}, "");
  REQUIRE(group);
  lose_only_stage(**group);
  const auto refused = error_of((*group)->replace({0}), errc::peer_lost);
  CHECK(refused.text == "stage-0.2: Resource temporarily unavailable");
  CHECK((*group)->lost({}).size() == 1);
  CHECK((*group)->replace({0}));
  CHECK((*group)->lost({}).empty());
  CHECK((*group)->names().front() == "stage-0.3");
}

TEST_CASE("a node that is not known to have ended is not replaced, and stays lost") {
  const auto nodes = std::make_shared<watched_threads>();
  nodes->not_ended = error{errc::io_failed, "stage-0 was killed, and has not ended"};
  const auto group = node_group::start(nodes, {"stage-0"}, "");
  REQUIRE(group);
  lose_only_stage(**group);
  const auto refused = error_of((*group)->replace({0}), errc::io_failed);
  CHECK(refused.text == "stage-0 was killed, and has not ended");
  CHECK((*group)->lost({}) == std::vector<std::size_t>{0});
  CHECK((*group)->names() == std::vector<std::string>{"stage-0"});
}

TEST_CASE("no node gets a place before all nodes that are replaced with it have ended") {
  const auto nodes = std::make_shared<watched_threads>();
  bool has_ended = false;
  std::vector<std::string> given_up;
  nodes->on_give_up = [&](const std::string& name) {
    given_up.push_back(name);
    nodes->not_ended.reset();
    if (name == "stage-1" && !has_ended)
      nodes->not_ended = error{errc::io_failed, "stage-1 was killed, and has not ended"};
  };
  std::vector<std::string> started;
  nodes->start_another = [&](const auto& name, const auto& trainer) {
    started.push_back(name);
    return nodes->start(name, trainer);
  };
  const auto group = node_group::start(nodes, {"stage-0", "stage-1"}, "");
  REQUIRE(group);
  const std::vector<std::size_t> both{0, 1};
  for (const auto place : both)
    (*group)->lose(place, {errc::peer_lost, "it is of no use any more"});
  check_refused((*group)->replace(both), errc::io_failed, "stage-1 was killed, and has not ended");
  CHECK(started.empty());
  CHECK((*group)->lost({}) == both);
  has_ended = true;
  REQUIRE((*group)->replace(both));
  CHECK(given_up == std::vector<std::string>{"stage-0", "stage-1", "stage-1"});
  CHECK((*group)->names() == std::vector<std::string>{"stage-0.2", "stage-1.2"});
  CHECK((*group)->lost({}).empty());
}

TEST_CASE("a node that was left out is given up once, and another one gets its place later") {
  const auto nodes = std::make_shared<watched_threads>();
  std::vector<std::string> given_up;
  nodes->on_give_up = [&](const std::string& name) { given_up.push_back(name); };
  nodes->start_another = [&](const auto& name, const auto& trainer) {
    return nodes->start(name, trainer);
  };
  const auto group = node_group::start(nodes, {"stage-0"}, "");
  REQUIRE(group);
  lose_only_stage(**group);
  const auto told = (*group)->leave_out(0, {errc::peer_lost, "it is of no use any more"});
  CHECK_THAT(told.text, ContainsSubstring("it is of no use any more"));
  REQUIRE((*group)->replace({0}));
  CHECK(given_up == std::vector<std::string>{"stage-0"});
  CHECK((*group)->names() == std::vector<std::string>{"stage-0.2"});
  CHECK((*group)->lost({}).empty());
}

TEST_CASE(
    "a lost node that no host is left for is given up once, and each try says how it was lost") {
  const auto nodes = std::make_shared<watched_threads>();
  std::vector<std::string> given_up;
  nodes->on_give_up = [&](const std::string& name) {
    given_up.push_back(name);
    nodes->told_ends.clear();  // what is given up is said no more
  };
  nodes->start_another = [](const auto&, const auto&) -> result<void> {
    return fail(errc::peer_lost, "no other node is left");
  };
  const auto group = node_group::start(nodes, {"stage-0"}, "");
  REQUIRE(group);
  lose_only_stage(**group);
  nodes->told_ends.push_back({"stage-0", {errc::peer_lost, "its agent was killed"}});
  for (int tries = 0; tries < 3; ++tries) {
    CHECK(error_of((*group)->replace({0}), errc::peer_lost).text ==
          "its agent was killed, and no other node is left");
    CHECK((*group)->lost({}) == std::vector<std::size_t>{0});
    const error gone{errc::peer_lost, "node 'stage-0' is gone: it has ended the connection"};
    CHECK((*group)->explain(gone).text == "its agent was killed");
  }
  CHECK(given_up == std::vector<std::string>{"stage-0"});
}

TEST_CASE("a loss that is told after another node has the place hides no later one") {
  telling_nodes nodes;
  nodes.threads->start_another = [&nodes](const auto& name, const auto& trainer) {
    return nodes.threads->start(name, trainer);
  };
  const auto group = node_group::start(nodes.threads, {"stage-0", "stage-1"}, "");
  REQUIRE(group);
  nodes.threads->told_ends.push_back({"stage-0", {errc::peer_lost, "it was killed"}});
  REQUIRE((*group)->lost({}) == std::vector<std::size_t>{0});
  REQUIRE((*group)->replace({0}));
  (*group)->node().lose("stage-0", {errc::peer_lost, "it is silent"});
  nodes.boards.at("stage-1")->note_lost("stage-0.2");
  CHECK((*group)->lost(std::chrono::seconds(10)) == std::vector<std::size_t>{0});
  CHECK((*group)->names().front() == "stage-0.2");
}

TEST_CASE("an understudy that is lost as the host of a lost node is given up is not taken for it") {
  const auto nodes = std::make_shared<watched_threads>();
  std::mutex mutex;
  std::map<std::string, caf::actor_addr> hosts;
  nodes->spawn = [&](auto& system, const auto& here, auto on_shut_down) {
    const auto spawned = stage_host({})(system, here, std::move(on_shut_down));
    const std::scoped_lock lock(mutex);
    hosts[here.node.name()] = spawned->address();
    return spawned;
  };
  nodes->start_another = [&](const auto& name, const auto& trainer) {
    return nodes->start(name, trainer);
  };
  nodes->on_give_up = [&](const std::string& name) {
    if (name != "stage-0") return;
    const std::scoped_lock lock(mutex);
    caf::anon_send_exit(hosts.at("understudy-1"), caf::exit_reason::kill);
    nodes->told_ends.push_back({"understudy-1", {errc::peer_lost, "its host is given up"}});
  };
  const auto group = node_group::start(nodes, {"stage-0"}, "", {}, std::chrono::seconds(20), 1);
  REQUIRE(group);
  lose_only_stage(**group);
  REQUIRE((*group)->replace({0}));
  CHECK((*group)->names() == std::vector<std::string>{"stage-0.2"});
}

TEST_CASE("a host that answers nothing is given up before its loss is known, if others suffice") {
  const auto nodes = std::make_shared<watched_threads>();
  const std::string spare_host = GENERATE("alpha", "beta");
  nodes->on_host_of = [&](const std::string& name) {
    return understudies_core::is_one(name) ? spare_host : std::string("alpha");
  };
  nodes->start_another = [&](const auto& name, const auto& trainer) {
    return nodes->start(name, trainer);
  };
  std::string lost;
  nodes->on_give_up_unanswered = [&](const std::string& name) {
    lost = name;
    nodes->told_ends.push_back({"stage-1", {errc::peer_lost, "its host does not answer"}});
  };
  const auto group =
      node_group::start(nodes, {"stage-0", "stage-1"}, "", {}, std::chrono::seconds(20), 2);
  REQUIRE(group);
  (*group)->lose(0, {errc::peer_lost, "it is silent"});
  using places = std::vector<std::size_t>;
  CHECK((*group)->lost(std::chrono::seconds(10)) ==
        (spare_host == "beta" ? places{0, 1} : places{0}));
  CHECK(lost == (spare_host == "beta" ? "stage-0" : ""));
}

TEST_CASE("an understudy that cannot be started is warned of, and the run goes on without one") {
  const auto nodes = std::make_shared<watched_threads>();
  std::promise<caf::actor_addr> understudy;
  nodes->spawn = [&](auto& system, const auto& here, auto on_shut_down) {
    const auto spawned = stage_host({})(system, here, std::move(on_shut_down));
    if (here.node.name() == "understudy-1") understudy.set_value(spawned->address());
    return spawned;
  };
  nodes->start_another = [&](const auto& name, const auto& trainer) {
    return nodes->start(name, trainer);
  };
  const auto group = node_group::start(nodes, {"stage-0"}, "", {}, std::chrono::seconds(20), 1);
  REQUIRE(group);
  nodes->start_another = [](const auto&, const auto&) -> result<void> {
    return fail(errc::io_failed, "the system has no process for it");
  };
  const tests::heard_stderr heard;
  caf::anon_send_exit(understudy.get_future().get(), caf::exit_reason::kill);
  nodes->told_ends.push_back({"understudy-1", {errc::peer_lost, "it was killed"}});
  (*group)->fill_understudies();
  // The link's thread may have come first, and be about to say it.
  CHECK(heard.says("warning: understudy-1 is lost, an understudy; another one is started\n"));
  CHECK_THAT(heard.text(), ContainsSubstring("warning: no other understudy is started: the system "
                                             "has no process for it\n"));
  CHECK((*group)->lost({}).empty());
}

TEST_CASE("a run that is stopped waits no longer for a node in the place of a lost one") {
  const auto nodes = std::make_shared<watched_threads>();
  nodes->start_another = [](const auto&, const auto&) { return result<void>(); };
  std::atomic<bool> is_stopped = false;
  const auto group = node_group::start(nodes, {"stage-0"}, "", {}, std::chrono::hours(1), 0,
                                       [&is_stopped] { return is_stopped.load(); });
  REQUIRE(group);
  lose_only_stage(**group);
  is_stopped = true;
  check_refused((*group)->replace({0}), errc::cancelled,
                "the run was stopped while it waited for stage-0.2");
}

TEST_CASE("a node that others start and that is late gets the place that it was invited to") {
  const auto nodes = std::make_shared<watched_threads>();
  nodes->others_start = true;
  std::vector<std::string> invited;
  std::string trainer;
  nodes->start_another = [&](const auto& name, const auto& at) {
    invited.push_back(name);
    trainer = at;
    return result<void>();
  };
  const auto group = node_group::start(nodes, {"stage-0"}, "", {}, std::chrono::seconds(1));
  REQUIRE(group);
  lose_only_stage(**group);
  check_refused((*group)->replace({0}), errc::peer_lost,
                "stage-0.2 has not joined the run within 1 s");
  REQUIRE(nodes->start("stage-0.2", trainer));
  REQUIRE((*group)->node().wait_for("stage-0.2", std::chrono::seconds(10)));
  CHECK((*group)->lost({}).size() == 1);
  CHECK((*group)->replace({0}));
  CHECK((*group)->lost({}).empty());
  CHECK((*group)->names().front() == "stage-0.2");
  lose_only_stage(**group);
  nodes->start_another = [&](const auto& name, const auto& at) {
    invited.push_back(name);
    return nodes->start(name, at);
  };
  CHECK((*group)->replace({0}));
  CHECK(invited == std::vector<std::string>{"stage-0.2", "stage-0.3"});
}

TEST_CASE("a node that others start, that is late and then lost, leaves its place to another") {
  std::counting_semaphore<> failed(0);
  const auto nodes = std::make_shared<watched_threads>();
  nodes->others_start = true;
  nodes->on_failure = [&failed](const error&) { failed.release(); };
  std::string trainer;
  nodes->start_another = [&](const auto& name, const auto& at) {
    trainer = at;
    return name == "stage-0.3" ? nodes->start(name, at) : result<void>();
  };
  const auto group = node_group::start(nodes, {"stage-0"}, "", {}, std::chrono::seconds(1));
  REQUIRE(group);
  lose_only_stage(**group);
  REQUIRE(failed.try_acquire_for(std::chrono::seconds(10)));
  check_refused((*group)->replace({0}), errc::peer_lost,
                "stage-0.2 has not joined the run within 1 s");
  REQUIRE(nodes->start("stage-0.2", trainer));
  REQUIRE((*group)->node().wait_for("stage-0.2", std::chrono::seconds(10)));
  (*group)->node().lose("stage-0.2", {errc::peer_lost, "it is silent"});
  REQUIRE(failed.try_acquire_for(std::chrono::seconds(10)));
  CHECK((*group)->replace({0}));
  CHECK((*group)->lost({}).empty());
  CHECK((*group)->names().front() == "stage-0.3");
}

TEST_CASE("of nodes that others start the one that was in time keeps its place beside a late one") {
  std::counting_semaphore<> failed(0);
  const auto nodes = std::make_shared<watched_threads>();
  nodes->others_start = true;
  nodes->on_failure = [&failed](const error&) { failed.release(); };
  std::vector<std::string> invited;
  std::string trainer;
  nodes->start_another = [&](const auto& name, const auto& at) {
    invited.push_back(name);
    trainer = at;
    return name == "stage-0.2" ? nodes->start(name, at) : result<void>();
  };
  const auto group =
      node_group::start(nodes, {"stage-0", "stage-1"}, "", {}, std::chrono::seconds(1));
  REQUIRE(group);
  for (const std::size_t place : {0, 1}) {
    (*group)->lose(place, {errc::peer_lost, "it is of no use any more"});
    REQUIRE(failed.try_acquire_for(std::chrono::seconds(10)));
  }
  check_refused((*group)->replace({0, 1}), errc::peer_lost,
                "stage-1.2 has not joined the run within 1 s");
  CHECK((*group)->lost({}) == std::vector<std::size_t>{0, 1});
  REQUIRE(nodes->start("stage-1.2", trainer));
  REQUIRE((*group)->node().wait_for("stage-1.2", std::chrono::seconds(10)));
  CHECK((*group)->replace({0, 1}));
  CHECK((*group)->lost({}).empty());
  CHECK((*group)->names() == std::vector<std::string>{"stage-0.2", "stage-1.2"});
  CHECK(invited == std::vector<std::string>{"stage-0.2", "stage-1.2"});
}

TEST_CASE("what outlives the trainer is lost where it and a stage lose sight of each other") {
  const std::string outliving = node_group::outliving;
  const bool is_told_by_stage = GENERATE(true, false);
  telling_nodes nodes;
  std::promise<error> ended;
  nodes.threads->on_failure = [&ended](const error& why) { ended.set_value(why); };
  const auto group =
      node_group::start(nodes.threads, {"stage-0"}, "", {}, std::chrono::seconds(10), 0, {}, {}, 0);
  REQUIRE(group);
  REQUIRE((*group)->outliving_host());
  if (is_told_by_stage)
    nodes.boards.at("stage-0")->note_lost(outliving);
  else
    nodes.boards.at(outliving)->note_lost("stage-0");
  auto how = ended.get_future();
  REQUIRE(how.wait_for(std::chrono::seconds(10)) == std::future_status::ready);
  CHECK_THAT(how.get().text, ContainsSubstring("stage-0 has lost sight of keeper"));
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while ((*group)->outliving_host() && std::chrono::steady_clock::now() < end)
    std::this_thread::yield();  // its own word on that may come first
  CHECK_FALSE((*group)->outliving_host());
  CHECK((*group)->lost({}).empty());
}

TEST_CASE("why nothing outlives the trainer is told in a warning, and the run begins without it") {
  std::array<int, 2> ends{};
  REQUIRE(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) == 0);
  const descriptor own(ends[0]), other(ends[1]);
  const bool is_invited = GENERATE(false, true);
  const auto nodes = std::make_shared<watched_threads>();
  nodes->on_invite = [&](const std::string& trainer) -> result<void> {
    if (!is_invited) return fail(errc::peer_lost, "an invitation cannot be sent: Broken pipe");
    decline_invitation(other.get(), trainer, "keeper: the port 4711 is taken");
    return {};
  };
  const tests::heard_stderr heard;
  const auto group =
      node_group::start(nodes, {"stage-0"}, "", {}, std::chrono::seconds(10), 0, {}, {}, own.get());
  REQUIRE(group);
  const std::string why = is_invited ? "it has not joined: keeper: the port 4711 is taken"
                                     : "an invitation cannot be sent: Broken pipe";
  CHECK_THAT(heard.text(),
             ContainsSubstring("warning: no process keeps versions for another trainer: if this "
                               "one is lost, the run goes back to its last checkpoint: " +
                               why + "\n"));
  CHECK_FALSE((*group)->outliving_host());
  CHECK((*group)->lost({}).empty());
}

TEST_CASE("what outlives the trainer is let go of once, when the trainer leaves it") {
  const auto nodes = std::make_shared<watched_threads>();
  caf::weak_actor_ptr host;
  {
    const auto group =
        node_group::start(nodes, {"stage-0"}, "", {}, std::chrono::seconds(10), 0, {}, {}, 0);
    REQUIRE(group);
    host = (*group)->outliving_host().get();
    REQUIRE(host.get() != nullptr);
  }
  CHECK(host->strong_refs == 0);
}

TEST_CASE("why a node is ended that another lost sight of is known before anybody can read of it") {
  telling_nodes nodes;
  const auto group = node_group::start(nodes.threads, {"stage-0", "stage-1"}, "");
  REQUIRE(group);
  full_stderr unread;
  nodes.boards.at("stage-0")->note_lost("stage-1");
  const auto reason = [&group] {
    return (*group)->explain({errc::peer_lost, "no answer"}, std::chrono::milliseconds(0)).text;
  };
  const auto end = steady_clock::now() + std::chrono::seconds(10);
  while (reason() == "no answer" && steady_clock::now() < end) std::this_thread::yield();
  CHECK_THAT(reason(), ContainsSubstring("stage-0 has lost sight of stage-1"));
  unread.read_until(": it is lost\n");
}

TEST_CASE("a node that is left out and has not ended is warned of") {
  const auto nodes = std::make_shared<watched_threads>();
  const auto group = node_group::start(nodes, {"stage-0"}, "");
  REQUIRE(group);
  lose_only_stage(**group);
  nodes->not_ended = error{errc::io_failed, "stage-0 was killed, and has not ended"};
  const tests::heard_stderr heard;
  static_cast<void>((*group)->leave_out(0, {errc::peer_lost, "it is of no use any more"}));
  CHECK_THAT(heard.text(), ContainsSubstring("warning: stage-0 was killed, and has not ended\n"));
}

TEST_CASE("what else has ended in a run that fails is told once, at its end") {
  const auto nodes = std::make_shared<watched_threads>();
  const std::string killed = "stage-0 was killed by signal 9", other = "stage-1 exited with code 3";
  const tests::heard_stderr heard;
  {
    const auto group = node_group::start(nodes, {"stage-0", "stage-1"}, "");
    REQUIRE(group);
    (*group)->note_failure({errc::peer_lost, killed});
    for (const auto& [node, how] :
         {std::pair("stage-0", killed), std::pair("stage-1", other), std::pair("stage-1", other)})
      nodes->told_ends.push_back({node, {errc::peer_lost, how}});
  }
  const auto text = heard.text();
  const auto first = text.find("warning: " + other + "\n");
  CHECK(first != std::string::npos);
  CHECK(first == text.rfind("warning: " + other + "\n"));
  CHECK(text.find("warning: " + killed) == std::string::npos);
}

TEST_CASE("a node of another build is refused, and the run goes on waiting for one of its own") {
  const auto nodes = std::make_shared<watched_threads>();
  nodes->build = "00ff";
  nodes->stranger = "00fe";
  {
    const auto group = node_group::start(nodes, {"stage-0"}, "");
    REQUIRE(group);
    REQUIRE(nodes->refusals.size() == 1);
    CHECK_THAT(nodes->refusals[0].text,
               ContainsSubstring("stage-0 on ") &&
                   ContainsSubstring("is another build of the program, 00fe and not 00ff as the "
                                     "trainer's; install the trainer's program there"));
  }
  CHECK(nodes->failures == 0);
}
