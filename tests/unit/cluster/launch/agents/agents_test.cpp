// A launcher and its agents, as state machines: what each says, starts and ends, and when.

#include <signal.h>

#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <deque>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "cluster/launch/agents/clock_words.hpp"
#include "cluster/launch/agents/secret_pipe.hpp"
#include "cluster/membership/log_end.hpp"
#include "tests/unit/cluster/agents_fixture.hpp"

namespace {

using namespace troupe;
using namespace troupe::cluster;
using namespace troupe::tests;
using namespace std::chrono_literals;
using Catch::Matchers::ContainsSubstring;

const agent_core::effects says_alive{agent_core::tell{events::alive{}}};

}  // namespace

TEST_CASE("a host whose clock is minutes from the launcher's is told so, with what to do") {
  constexpr std::int64_t minute = 60'000'000'000;
  constexpr std::int64_t now = 30'000'000 * minute;
  CHECK(words_on_told_clock(now + 1440 * minute, now) ==
        "its clock is 24.0 hours ahead of the trainer's: times in logs and files will not fit "
        "together; set it, and keep it by NTP (timedatectl set-ntp true, chronyd)");
  CHECK_THAT(words_on_told_clock(now - 4 * minute, now),
             ContainsSubstring("its clock is 240.0 s behind the trainer's: "));
  // A greeting takes its time to come, and another build's says nothing.
  for (const auto told : {now + 2 * minute, now - 2 * minute, std::int64_t{0}})
    CHECK(words_on_told_clock(told, now).empty());
  auto agent = who;
  agent.clock_ns = now;
  const auto line = encode(agent_event(agent));
  CHECK(std::get<events::hello>(decode_event(line).value()).clock_ns == now);
  const auto older = decode_event(
      R"({"is":"hello","protocol":1,"build":"b0","host":"h","cores":1,"memory_bytes":1})");
  REQUIRE(older);
  CHECK(std::get<events::hello>(*older).clock_ns == 0);
  CHECK(std::get<events::hello>(*older).addresses.empty());
  agent.addresses = {"10.0.0.2/24", "fd00::2/64"};
  CHECK(decode_event(encode(agent_event(agent))).value() == agent_event(agent));
}

TEST_CASE("the longest line of a process fits the line of an event") {
  auto agent = begun_agent();
  run(agent, "stage-0");
  const std::string worst(3 * most_text_bytes + 5, '\x01');
  const auto told = agent.wrote("stage-0", output_stream::out, worst);
  REQUIRE(told.size() == 4);
  std::string whole;
  for (const auto& each : told) {
    const auto line = encode(std::get<agent_core::tell>(each).what);
    CHECK(line.size() < (1 << 16));
    whole += std::get<events::line>(decode_event(line).value()).text;
  }
  CHECK(whole == worst);
}

TEST_CASE("an agent tells what its processes write and how they end") {
  auto agent = begun_agent();
  run(agent, "stage-0");
  CHECK(agent.wrote("stage-0", output_stream::err, "") ==
        agent_core::effects{agent_core::tell{events::line{"stage-0", output_stream::err, ""}}});
  CHECK(agent.ended({"stage-0", 5, 0, 9}) ==
        agent_core::effects{agent_core::tell{events::ended{"stage-0", 5, 0, 9}}});
}

TEST_CASE("an agent refuses a second process of one name, and says at once that it kills one") {
  auto agent = begun_agent();
  run(agent, "stage-0");
  const auto again = agent.heard(encode(agent_order(start_of("stage-0"))), begin_of_time);
  CHECK(again ==
        agent_core::effects{agent_core::tell{events::refused{"stage-0", "it runs already"}}});
  CHECK(agent.heard(encode(agent_order(orders::kill{"stage-0"})), begin_of_time) ==
        agent_core::effects{agent_core::tell{events::alive{}}, agent_core::kill{"stage-0"}});
  CHECK(agent.heard(encode(agent_order(orders::kill{"stage-1"})), begin_of_time).empty());
}

TEST_CASE("an agent whose launcher breaks off kills its processes at once") {
  auto agent = begun_agent();
  run(agent, "stage-0");
  CHECK(agent.cut_off("gone") ==
        agent_core::effects{agent_core::tell{events::ends{"gone"}}, agent_core::end_all{0ms}});
  const auto last = agent.ended({"stage-0", 5, 0, 9});
  REQUIRE(find<agent_core::leave>(last) != nullptr);
  CHECK(find<agent_core::leave>(last)->why == "gone");
}

TEST_CASE("an agent whose scheduler asks it to end leaves that to its launcher while it answers") {
  auto agent = begun_agent();
  run(agent, "stage-0");
  CHECK(agent.asked_to_end(begin_of_time) ==
        agent_core::effects{agent_core::tell{events::asked_to_end{}}});
  auto now = begin_of_time;
  for (int i = 0; i < 40; ++i) {
    now += 250ms;
    CHECK(agent.heard(encode(agent_order(orders::alive{})), now) == says_alive);
    CHECK(find<agent_core::end_all>(agent.tick(now)) == nullptr);
  }
  auto lonely = agent_core(who, begin_of_time);
  CHECK(lonely.heard(encode(agent_order(orders::begin{60'000})), begin_of_time).empty());
  run(lonely, "stage-0");
  now = begin_of_time;
  CHECK(find<agent_core::tell>(lonely.asked_to_end(now)) != nullptr);
  CHECK(find<agent_core::end_all>(lonely.tick(now += 2000ms)) == nullptr);
  CHECK(find<agent_core::end_all>(lonely.tick(now += 1ms)) != nullptr);
}

TEST_CASE("a session that hears that its scheduler wants an end answers, and says so") {
  auto session = ready_session();
  CHECK(session.heard(output_stream::out, encode(agent_event(events::asked_to_end{})),
                      begin_of_time) ==
        session_core::effects{session_core::send{orders::alive{}}, session_core::asked_to_end{}});
}

TEST_CASE("a signal that asks for no end goes from the agent to the launcher, and ends nothing") {
  CHECK(agent_core(who, begin_of_time).signalled(10).empty());  // nobody to tell yet
  auto agent = begun_agent();
  run(agent, "stage-0");
  CHECK(agent.signalled(10) == agent_core::effects{agent_core::tell{events::signalled{10}}});
  CHECK(agent.heard(encode(agent_order(orders::end{500})), begin_of_time).size() == 1);
  CHECK(agent.signalled(10).empty());
  auto session = ready_session();
  CHECK(session.heard(output_stream::out, encode(agent_event(events::signalled{12})),
                      begin_of_time) == session_core::effects{session_core::signalled{12}});
}

TEST_CASE("an agent without processes leaves at once when its launcher breaks off") {
  auto agent = begun_agent();
  CHECK(find<agent_core::leave>(agent.cut_off("gone")) != nullptr);
  CHECK(agent.cut_off("again").empty());
}

TEST_CASE("an agent whose launcher falls silent kills its processes") {
  auto agent = begun_agent();
  run(agent, "stage-0");
  auto now = begin_of_time;
  for (int i = 0; i < 4; ++i) {
    now += 250ms;
    CHECK(find<agent_core::end_all>(agent.tick(now)) == nullptr);
  }
  now += 250ms;
  CHECK(find<agent_core::end_all>(agent.tick(now)) != nullptr);
}

TEST_CASE("an agent that is told of life, or that its launcher is stopped, goes on") {
  auto agent = begun_agent();
  run(agent, "stage-0");
  auto now = begin_of_time;
  for (int i = 0; i < 20; ++i) {
    now += 250ms;
    CHECK(agent.heard(encode(agent_order(orders::alive{})), now) == says_alive);
    CHECK(find<agent_core::end_all>(agent.tick(now)) == nullptr);
  }
  CHECK(agent.heard(encode(agent_order(orders::suspend{})), now) ==
        agent_core::effects{agent_core::suspend_all{}});
  for (int i = 0; i < 20; ++i) {
    now += 250ms;
    CHECK(find<agent_core::end_all>(agent.tick(now)) == nullptr);
  }
  CHECK(agent.heard(encode(agent_order(orders::resume{})), now) ==
        agent_core::effects{agent_core::resume_all{}});
  for (int i = 0; i < 4; ++i) CHECK(find<agent_core::end_all>(agent.tick(now += 250ms)) == nullptr);
  CHECK(find<agent_core::end_all>(agent.tick(now += 250ms)) != nullptr);
}

TEST_CASE("an agent that stood still itself listens before it decides") {
  auto agent = begun_agent();
  CHECK(find<agent_core::end_all>(agent.tick(begin_of_time + 1h)) == nullptr);
  auto slow = begun_agent();
  for (const auto time : {500ms, 1000ms})
    CHECK(find<agent_core::end_all>(slow.tick(begin_of_time + time)) == nullptr);
  CHECK(find<agent_core::end_all>(slow.tick(begin_of_time + 1500ms)) != nullptr);
}

TEST_CASE("an agent says that it is alive, but not more often than needed") {
  auto agent = begun_agent();
  CHECK(agent.tick(begin_of_time + 249ms).empty());
  CHECK(agent.tick(begin_of_time + 250ms) ==
        agent_core::effects{agent_core::tell{events::alive{}}});
  CHECK(agent.tick(begin_of_time + 300ms).empty());
}

TEST_CASE("an agent obeys nobody who does not begin with the first order, or speaks otherwise") {
  agent_core strange(who, begin_of_time);
  CHECK(find<agent_core::leave>(strange.heard(encode(agent_order(start_of("x"))), begin_of_time)) !=
        nullptr);
  auto garbled = begun_agent();
  CHECK(find<agent_core::leave>(garbled.heard("GET / HTTP/1.0", begin_of_time)) != nullptr);
}

TEST_CASE("a session forwards lines, notes ends and loses its agent once") {
  auto session = ready_session();
  CHECK(session.start(start_of("stage-1")) ==
        session_core::effects{session_core::send{start_of("stage-1")}});
  CHECK(session.processes().contains("stage-1"));
  const auto event = [&](const agent_event& what) {
    return session.heard(output_stream::out, encode(what), begin_of_time);
  };
  CHECK(event(events::line{"stage-1", output_stream::out, "hi"}) ==
        session_core::effects{session_core::show{"stage-1", output_stream::out, "hi"}});
  CHECK(event(events::ended{"stage-1", 7, 1, 0}) ==
        session_core::effects{session_core::process_ended{{"stage-1", 7, 1, 0}}});
  CHECK(session.processes().empty());
  const auto refused = [&](const std::string& why) {
    auto of = ready_session();
    return reason(of.heard(output_stream::out, encode(agent_event(events::refused{"stage-1", why})),
                           begin_of_time));
  };
  CHECK(refused("stage-1 cannot be started in its working folder /x: No such file or directory") ==
        "node beta (10.0.0.2): stage-1 cannot be started in its working folder /x: No such file or "
        "directory");
  CHECK(refused("it runs already") ==
        "node beta (10.0.0.2): stage-1 was not started: it runs already");
  CHECK_THAT(reason(session.ended({"beta", 4, 255, 0})),
             ContainsSubstring("node beta (10.0.0.2): its agent, or the ssh to it, exited"));
  CHECK(session.ended({"beta", 4, 255, 0}).empty());
  CHECK(session.tick(begin_of_time + 1h).empty());
}

TEST_CASE("a session says what its login shell prints, and goes on") {
  auto session = new_session();
  CHECK(session.heard(output_stream::out, "Welcome to beta!", begin_of_time).empty());
  const auto magic = session.heard(output_stream::out, magic_line(), begin_of_time);
  REQUIRE(find<session_core::warn>(magic) != nullptr);
  CHECK_THAT(
      find<session_core::warn>(magic)->text,
      ContainsSubstring("node beta (10.0.0.2): its login shell prints (\"Welcome to beta!\")"));
  CHECK(find<session_core::ready>(
            session.heard(output_stream::out, encode(agent_event(who)), begin_of_time)) != nullptr);
  // Without a newline of its own.
  auto glued = new_session();
  const auto both = glued.heard(output_stream::out, "hello " + magic_line(), begin_of_time);
  REQUIRE(find<session_core::warn>(both) != nullptr);
  CHECK_THAT(find<session_core::warn>(both)->text, ContainsSubstring("\"hello \""));
}

TEST_CASE("a session refuses an agent of another build or protocol") {
  for (const bool other_build : {true, false}) {
    auto session = new_session();
    CHECK(session.heard(output_stream::out, magic_line(), begin_of_time).empty());
    auto other = who;
    if (other_build)
      other.build = "b2";
    else
      other.protocol = 9;
    const auto why =
        reason(session.heard(output_stream::out, encode(agent_event(other)), begin_of_time));
    CHECK_THAT(why, ContainsSubstring("node beta (10.0.0.2): the program there (/opt/trainer) is"));
    CHECK_THAT(why, ContainsSubstring(other_build ? "another build, b2" : "another version"));
    CHECK_THAT(why, ContainsSubstring(", as here (/opt/own); copy the one that runs here to that "
                                      "host, or name its path with `program` in its [[node]]"));
  }
}

TEST_CASE("a session loses an agent that is silent, but not for standing still itself") {
  auto session = ready_session();
  auto now = begin_of_time;
  std::string why = "not lost";
  for (int i = 0; i < 5; ++i) why = reason(session.tick(now += 250ms));
  CHECK_THAT(why, ContainsSubstring("its agent has been silent for 1 s"));
  CHECK_THAT(why, ContainsSubstring(remedy_of_silence));
  auto paused = ready_session();
  CHECK(reason(paused.tick(begin_of_time + 1h)) == "not lost");
  auto slow = ready_session();
  for (const auto time : {500ms, 1000ms})
    CHECK(reason(slow.tick(begin_of_time + time)) == "not lost");
  CHECK_THAT(reason(slow.tick(begin_of_time + 1500ms)), ContainsSubstring("silent for 1 s"));
  auto mute = new_session();
  now = begin_of_time;
  for (int i = 0; i < 10; ++i) CHECK(reason(mute.tick(now += 500ms)) == "not lost");
  CHECK_THAT(reason(mute.tick(now += 1ms)), ContainsSubstring("no agent has answered within 5 s"));
}

TEST_CASE("a session says that it is alive, but not more often than needed") {
  auto session = ready_session();
  CHECK(session.tick(begin_of_time + 249ms).empty());
  CHECK(session.tick(begin_of_time + 250ms) ==
        session_core::effects{session_core::send{orders::alive{}}});
  CHECK(session.tick(begin_of_time + 499ms).empty());
}

TEST_CASE("a session whose launcher was stopped counts its agent's silence from when it goes on") {
  auto session = ready_session();
  auto now = begin_of_time + 400ms;
  CHECK(reason(session.tick(now)) == "not lost");
  CHECK(session.resume(now) == session_core::effects{session_core::send{orders::resume{}}});
  for (int i = 0; i < 10; ++i) CHECK(reason(session.tick(now += 100ms)) == "not lost");
  CHECK(reason(session.tick(now += 100ms)) != "not lost");
  CHECK(session.resume(now).empty());
}

TEST_CASE("what comes on standard error is shown, and before the agent answers it is the reason") {
  CHECK(ready_session().heard(output_stream::err, "slow", begin_of_time) ==
        session_core::effects{session_core::show{"", output_stream::err, "slow"}});
  for (const std::size_t further : {59U, 60U}) {  // of these lines the last ones are kept
    auto session = new_session();
    for (std::size_t i = 0; i <= further; ++i)
      CHECK(session
                .heard(output_stream::err, i == 0 ? "Host key verification failed." : "more",
                       begin_of_time)
                .empty());
    const auto why = reason(session.ended({"beta", 4, 255, 0}));
    CHECK((why.find("host key is unknown") != std::string::npos) == (further == 59));
  }
}

TEST_CASE("a user is told how to try what reaches an agent, or the agent itself") {
  auto place = beta;
  CHECK(place.trial() == "ssh 10.0.0.2 true");
  place.carrier = "srun";
  CHECK(place.trial() == "srun --overlap --nodelist=10.0.0.2 true");
  place.carrier = "mpirun";
  CHECK(place.trial() == "mpirun --host 10.0.0.2 true");
  place.host.clear();
  CHECK(place.trial() == "/opt/trainer --help");
}

TEST_CASE("a session says once, and soon, that it waits for an agent, and for what") {
  auto mute = new_session();
  auto now = begin_of_time;
  const auto waits = [&](session_core& of) {
    std::vector<std::string> told;
    for (int i = 0; i < 8; ++i) {
      const auto effects = of.tick(now += 400ms);
      if (const auto* said = find<session_core::wait>(effects)) told.push_back(said->text);
    }
    return told;
  };
  CHECK(waits(mute) == std::vector<std::string>{"node beta (10.0.0.2): no answer for 2 s; waiting "
                                                "for ssh to reach it and to start /opt/trainer"});
  CHECK(waits(mute).empty());
  auto ready = ready_session();
  now = begin_of_time;
  CHECK(waits(ready).empty());
  auto exact = new_session();
  now = begin_of_time;
  for (int i = 0; i < 4; ++i) CHECK(find<session_core::wait>(exact.tick(now += 499ms)) == nullptr);
  CHECK(find<session_core::wait>(exact.tick(now += 4ms)) != nullptr);
}

TEST_CASE("what ssh says is told with host, meaning and remedy") {
  const auto explained = [](int code, const std::string& line) {
    return explain_start(beta, {"beta", 1, code, 0}, {"Warning: something else", line}, {}).text;
  };
  const std::vector<std::pair<std::string, std::string>> cases{
      {"Host key verification failed.", "host key is unknown to ssh"},
      {"root@10.0.0.2: Permission denied (publickey).", "it refuses our key"},
      {"ssh: Could not resolve hostname beta: Name or service not known", "nobody knows this name"},
      {"ssh: connect to host 10.0.0.2 port 22: Connection refused", "no ssh server listens there"},
      {"ssh: connect to host 10.0.0.2 port 22: No route to host", "there is no route to it"},
      {"ssh: connect to host 10.0.0.2 port 22: Connection timed out", "it does not answer"},
      {"Connection timed out during banner exchange", "ConnectTimeout=30\"] in [cluster]"}};
  for (const auto& [line, meaning] : cases) {
    const auto text = explained(255, line);
    INFO(text);
    CHECK(text.starts_with("node beta (10.0.0.2): "));
    CHECK_THAT(text, ContainsSubstring(meaning));
    CHECK_THAT(text, ContainsSubstring(" (" + line + "); "));  // the cause, before what to do
    CHECK(text.find('\n') == std::string::npos);
  }
  CHECK_THAT(explained(127, "sh: 1: exec: /opt/trainer: not found"),
             ContainsSubstring("the program /opt/trainer cannot be started there"));
  CHECK_THAT(explained(255, "some words of tomorrow's ssh"),
             ContainsSubstring("exited with code 255 before the agent answered (some words"));
  CHECK_THAT(explain_start(beta, {"beta", 1, 0, 0}, {}, {"This account is not available."}).text,
             ContainsSubstring("This account is not available."));
  CHECK_THAT(explained(1, "troupe agent: no descriptor is left"),
             ContainsSubstring("exited with code 1 before the agent answered (troupe agent: no"));
}

TEST_CASE(
    "what the user can change ends a launch with code 2, and a fault on the way with code 1") {
  const auto code = [](const child_exit& how, const std::string& line) {
    return exit_code(explain_start(beta, how, {line}, {}).code);
  };
  CHECK(code({"beta", 1, 255, 0}, "Host key verification failed.") == exit_refused);
  CHECK(code({"beta", 1, 255, 0}, "ssh: connect to host x: Connection refused") == exit_refused);
  CHECK(code({"beta", 1, 255, 0}, "Can't open user config file /x: No such file") == exit_refused);
  CHECK(code({"beta", 1, 255, 0}, "command-line: line 0: Bad configuration option: x") ==
        exit_refused);
  CHECK(code({"beta", 1, 127, 0}, "sh: 1: exec: /opt/trainer: not found") == exit_refused);
  CHECK(code({"beta", 1, 0, 0}, "") == exit_refused);  // another program
  CHECK(code({"beta", 1, 0, SIGKILL}, "") == exit_failed);
  CHECK(code({"beta", 1, 255, 0}, "") == exit_failed);  // the agent was killed
  CHECK(code({"beta", 1, 255, 0}, "Connection to beta closed by remote host.") == exit_failed);
  CHECK(code({"beta", 1, 255, 0}, "Connection reset by 10.0.0.2 port 22") == exit_failed);
  auto mute = new_session();
  session_core::effects late;
  auto now = begin_of_time;
  for (int i = 0; i < 13; ++i) late = mute.tick(now += 400ms);
  REQUIRE(find<session_core::lost>(late) != nullptr);
  CHECK(exit_code(find<session_core::lost>(late)->why.code) == exit_failed);
}

TEST_CASE("a process that refuses what it is told is a loss of another kind than one that fails") {
  CHECK(loss_of({"stage-1", 1, exit_refused, 0}, "no such address") ==
        error{errc::bad_config, "stage-1 exited with code 2: no such address"});
  CHECK(loss_of({"stage-1", 1, exit_failed, 0}, "").code == errc::peer_lost);
  CHECK(loss_of({"stage-1", 1, 0, SIGKILL}, "").code == errc::peer_lost);
}

TEST_CASE("a process's last word is kept for who says how it ended, and taken once") {
  last_words words;
  CHECK_FALSE(words.heard("stage-1", output_stream::err, "warning: it is slow"));
  CHECK_FALSE(words.heard("stage-1", output_stream::out, "troupe ends: no"));
  CHECK(words.heard("stage-1", output_stream::err, "troupe ends: no such address") ==
        "no such address");
  CHECK(words.take("stage-0").empty());
  CHECK(words.take("stage-1") == "no such address");
  CHECK(words.take("stage-1").empty());
}

TEST_CASE("another program than the run's is told apart from a failure of ssh") {
  for (const std::string& host : {std::string("10.0.0.2"), std::string()}) {
    auto place = beta;
    place.host = host;
    place.own_program = "/opt/resnet_pipeline";
    const auto text = explain_start(place, {"beta", 1, 0, 0}, {}, {}).text;
    CHECK(text.starts_with(place.text() + ": the program /opt/trainer exited with code 0 "));
    CHECK_THAT(text, ContainsSubstring("; name the path of the one that runs here, "
                                       "/opt/resnet_pipeline, with `program` in its [[node]]"));
    CHECK(text.find("ssh,") == std::string::npos);
  }
}

TEST_CASE("what srun and mpirun say is told with host, meaning and remedy") {
  const auto explained = [](const std::string& carrier, const std::deque<std::string>& lines) {
    auto place = beta;
    place.carrier = carrier;
    return explain_start(place, {"beta", 1, 1, 0}, lines, {}).text;
  };
  CHECK(explained("srun", {"slurmstepd-beta: error: execve(): /opt/trainer: No such file",
                           "srun: error: beta: task 0: Exited with exit code 2"}) ==
        "node beta (10.0.0.2): the program /opt/trainer cannot be started there (slurmstepd-beta: "
        "error: execve(): /opt/trainer: No such file); copy it to that host, or name its path with "
        "`program` in its [[node]]");
  CHECK_THAT(explained("srun", {"srun: error: Unable to confirm allocation for job 7: Invalid job "
                                "id specified"}),
             ContainsSubstring("the allocation has ended"));
  CHECK_THAT(explained("mpirun", {"-----", "mpirun has detected an attempt to run as root."}),
             ContainsSubstring("Open MPI refuses to run as root"));
  CHECK_THAT(explained("mpirun", {"ssh: Could not resolve hostname beta", "-----",
                                  "ORTE was unable to reliably start one or more daemons."}),
             ContainsSubstring("see that ssh reaches the host") &&
                 ContainsSubstring("(ssh: Could not resolve hostname beta)"));
  CHECK_THAT(
      explained("mpirun", {"troupe agent: munge: no socket", "Primary job terminated", "---"}),
      ContainsSubstring("(troupe agent: munge: no socket); see what `mpirun --host "
                        "10.0.0.2 true` does"));
}

TEST_CASE("ssh gets the user's options before the host, and the path as one word") {
  const auto words = ssh_words("me@beta", {"-p", "2222"}, "/opt/it's here/trainer");
  REQUIRE(words.size() >= 5);
  CHECK(words[words.size() - 2] == "me@beta");
  CHECK(words[words.size() - 3] == "--");
  CHECK(words.back() == "exec '/opt/it'\\''s here/trainer' --agent");
  const auto place = [&words](const std::string& word) { return std::ranges::find(words, word); };
  CHECK(place("BatchMode=yes") < place("-p"));
  CHECK(place("2222") < place("ConnectTimeout=4"));  // ssh takes the first of a kind
  CHECK(place("ConnectTimeout=4") < place("--"));
}

TEST_CASE("srun loses one host without the others, and options stand before the program") {
  const std::vector<std::string> command{"/opt/trainer", "--agent"};
  const auto has = [](const std::vector<std::string>& words, const std::string& word) {
    return std::ranges::find(words, word) != words.end();
  };
  const auto by_srun = srun_words("beta", {"--mem-bind=local"}, command);
  for (const auto* word : {"--nodelist=beta", "--ntasks=1", "--overlap", "--no-kill",
                           "--kill-on-bad-exit=0", "--mem-bind=local"})
    CHECK(has(by_srun, word));
  const auto by_mpirun = mpirun_words("beta", {"--verbose"}, command);
  for (const auto* word : {"--host", "beta", "--verbose"}) CHECK(has(by_mpirun, word));
  for (const auto& words : {by_srun, by_mpirun})  // what stands behind the program is its own
    CHECK(std::ranges::equal(std::span(words).last(command.size()), command));
}

TEST_CASE("a secret passes an order, and nothing else is taken for one") {
  const auto secret = messages::cluster_secret::random();
  const auto digits = to_digits(secret);
  const auto back = from_digits(digits);
  REQUIRE(back);
  CHECK(std::ranges::equal(back->bytes(), secret.bytes()));
  for (const auto* wrong : {"0", "0g", "00 11"}) CHECK_FALSE(from_digits(wrong));
  std::string text = digits;
  forget(text);
  CHECK(text == std::string(digits.size(), '\0'));
}
