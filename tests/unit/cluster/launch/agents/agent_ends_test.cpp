// How an agent ends, and what its launcher says of one that does not, or is ended by somebody else.

#include <signal.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <string>
#include <vector>

#include "tests/unit/cluster/agents_fixture.hpp"

namespace {

using namespace troupe;
using namespace troupe::cluster;
using namespace troupe::tests;
using Catch::Matchers::ContainsSubstring;

/// What a session says, and why it is lost, as time passes in which its agent says nothing.
std::vector<std::string> told_in_silence(session_core& session, time_point& now,
                                         std::chrono::milliseconds time) {
  std::vector<std::string> told;
  for (const auto end = now + time; now < end;) {
    const auto effects = session.tick(now += 100ms);
    if (const auto* said = find<session_core::wait>(effects)) told.push_back(said->text);
    if (const auto* lost = find<session_core::lost>(effects)) told.push_back(lost->why.text);
  }
  return told;
}

session_core patient_session(agent_place place = beta) {
  session_core session(std::move(place), 60s, 5s, begin_of_time);
  CHECK(session.heard(output_stream::out, magic_line(), begin_of_time).empty());
  CHECK_FALSE(session.heard(output_stream::out, encode(agent_event(who)), begin_of_time).empty());
  CHECK_FALSE(session.start(start_of("stage-1")).empty());
  return session;
}

}  // namespace

TEST_CASE("an agent ends its processes and then itself, as its launcher says") {
  auto agent = begun_agent();
  run(agent, "stage-0");
  CHECK(agent.heard(encode(agent_order(orders::end{500})), begin_of_time) ==
        agent_core::effects{agent_core::end_all{500ms}});
  const auto last = agent.ended({"stage-0", 5, 0, 0});
  REQUIRE(find<agent_core::leave>(last) != nullptr);
  CHECK(find<agent_core::leave>(last)->why.empty());
}

TEST_CASE("a session that is told to end takes the agent's end for order") {
  auto session = ready_session();
  CHECK(session.end(1s) == session_core::effects{session_core::send{orders::end{1000}}});
  CHECK(session.end(1s).empty());
  CHECK(session.ended({"beta", 4, 0, 0}).empty());
  CHECK(session.is_over());
}

TEST_CASE("a session gives up an agent that does not end what it is to end") {
  auto session = ready_session();
  CHECK(session.start(start_of("stage-1")).size() == 1);
  CHECK(session.processes().contains("stage-1"));
  CHECK_FALSE(session.has_spoken_since(begin_of_time));
  CHECK(session.heard(output_stream::out, encode(agent_event(events::alive{})), begin_of_time + 1s)
            .empty());
  CHECK(session.has_spoken_since(begin_of_time));
  CHECK_THAT(
      reason(session.has_not_ended("stage-1", 1500ms)),
      ContainsSubstring("node beta (10.0.0.2): its agent has not ended stage-1 within 1.5 s"));
  CHECK(session.is_over());
  CHECK(session.processes().empty());
  CHECK(session.has_not_ended("stage-1", 3s).empty());
}

TEST_CASE("an agent counts as silent only where its launcher has not stood still meanwhile") {
  auto session = patient_session();
  const auto asked = begin_of_time + 1s;
  auto now = begin_of_time;
  CHECK(told_in_silence(session, now, 2500ms).empty());
  CHECK(session.has_been_silent_since(asked));
  CHECK(session.tick(now += 400ms).empty());  // a tick may be late
  CHECK(session.has_been_silent_since(asked));
  CHECK(reason(session.tick(now += 500ms)) == "not lost");
  CHECK(session.has_been_silent_since(asked));
  auto paused = patient_session();
  now = begin_of_time;
  CHECK(told_in_silence(paused, now, 1s).empty());
  CHECK(reason(paused.tick(now += 1500ms)) == "not lost");
  CHECK_FALSE(paused.has_been_silent_since(asked));
  CHECK(paused.has_been_silent_since(now));
  CHECK(
      paused.heard(output_stream::out, encode(agent_event(events::alive{})), now += 100ms).empty());
  CHECK_FALSE(paused.has_been_silent_since(asked + 1500ms));
}

TEST_CASE("a session asks its agent whether it is there, and gives it up without an answer") {
  const auto question = session_core::effects{session_core::send{orders::alive{}}};
  const auto answer = encode(agent_event(events::alive{}));
  auto session = patient_session();
  CHECK(session.give_up_unanswered(0ms, begin_of_time + 1h).empty());  // nothing was asked
  auto now = begin_of_time + 100ms;
  CHECK(session.ask(now) == question);
  CHECK(session.ask(now + 50ms).empty());  // that question is open
  CHECK(session.heard(output_stream::out, answer, now += 100ms).empty());
  CHECK(session.give_up_unanswered(0ms, now + 1h).empty());
  CHECK(session.ask(now += 100ms) == question);
  CHECK(session.give_up_unanswered(350ms, now + 349ms).empty());
  CHECK(reason(session.give_up_unanswered(350ms, now + 350ms)) ==
        "node beta (10.0.0.2): its agent, or the ssh to it, has not answered within 0.35 s, as "
        "others have; all processes there are given up");
  CHECK(session.is_over());
  CHECK(session.processes().empty());
  CHECK(session.ask(now + 1s).empty());
  CHECK(session.give_up_unanswered(350ms, now + 1s).empty());
  CHECK(new_session().ask(begin_of_time).empty());  // that has yet to begin
}

TEST_CASE("a question that stayed open while its launcher stood still is asked again") {
  auto session = patient_session();
  CHECK(session.ask(begin_of_time).size() == 1);
  const auto now = begin_of_time + 1s;
  CHECK(reason(session.tick(now)) == "not lost");
  CHECK(session.give_up_unanswered(350ms, now).empty());
  CHECK(session.ask(now).size() == 1);
  CHECK(session.give_up_unanswered(350ms, now + 349ms).empty());
  CHECK(session.give_up_unanswered(350ms, now + 350ms).size() == 1);
}

TEST_CASE("an agent answers beside another one if its answers came soon since that one was asked") {
  const auto answer = encode(agent_event(events::alive{}));
  auto silent = patient_session();
  auto other = patient_session();
  const auto asks = [](session_core& session, time_point now) {
    return session.ask(now).size() == 1;
  };
  const auto hears = [&](session_core& session, time_point now) {
    return session.heard(output_stream::out, answer, now).empty();
  };
  CHECK_FALSE(new_session().answers_beside(silent, 1h, begin_of_time));  // that has yet to begin
  const auto asked = begin_of_time + 1s;
  CHECK((asks(silent, asked) && asks(other, asked)));
  CHECK_FALSE(other.answers_beside(silent, 350ms, asked + 10ms));
  CHECK(hears(other, asked + 170ms));
  CHECK(other.answers_beside(silent, 350ms, asked + 519ms));
  CHECK_FALSE(other.answers_beside(silent, 350ms, asked + 520ms));
  CHECK(asks(other, asked + 600ms));
  CHECK(hears(other, asked + 775ms));  // both were cut off, and the other one is no more
  CHECK(asks(other, asked + 800ms));
  CHECK(hears(other, asked + 810ms));
  CHECK_FALSE(other.answers_beside(silent, 350ms, asked + 820ms));
  auto asked_meanwhile = patient_session();
  CHECK(asks(asked_meanwhile, asked + 775ms));
  CHECK_FALSE(other.answers_beside(asked_meanwhile, 350ms, asked + 820ms));
  CHECK(hears(silent, asked + 900ms));
  CHECK(asks(silent, asked + 901ms));
  CHECK(other.answers_beside(silent, 350ms, asked + 902ms));
}

TEST_CASE("an agent reads orders while a process is being started, and leaves when it has ended") {
  auto agent = begun_agent();
  const auto heard = [&agent](const agent_order& order) {
    return agent.heard(encode(order), begin_of_time);
  };
  CHECK(heard(start_of("stage-0")) == agent_core::effects{agent_core::launch{start_of("stage-0")}});
  CHECK(heard(start_of("stage-0")) ==
        agent_core::effects{agent_core::tell{events::refused{"stage-0", "it runs already"}}});
  CHECK(heard(orders::kill{"stage-0"}) ==
        agent_core::effects{agent_core::tell{events::alive{}}, agent_core::kill{"stage-0"}});
  CHECK(heard(orders::end{500}) == agent_core::effects{agent_core::end_all{500ms}});
  CHECK(agent.cut_off("the launcher's stream has closed") ==
        agent_core::effects{agent_core::end_all{0ms}});
  CHECK(agent.started("stage-0") ==
        agent_core::effects{agent_core::tell{events::started{"stage-0"}}});
  CHECK(find<agent_core::leave>(agent.ended({"stage-0", 5, 0, SIGKILL})) != nullptr);
}

TEST_CASE("an agent that is told to end while a process is being started leaves if it cannot be") {
  auto agent = begun_agent();
  CHECK(agent.heard(encode(agent_order(start_of("stage-0"))), begin_of_time).size() == 1);
  CHECK(agent.heard(encode(agent_order(orders::end{500})), begin_of_time).size() == 1);
  const auto last = agent.refused("stage-0", "no process is left");
  CHECK(last.front() ==
        agent_core::effect(agent_core::tell{events::refused{"stage-0", "no process is left"}}));
  CHECK(find<agent_core::leave>(last) != nullptr);
}

TEST_CASE("an agent that a signal ends says so before its processes end") {
  auto agent = begun_agent();
  run(agent, "stage-0");
  const std::string why = "signal 2 (SIGINT) asked it to end";
  CHECK(agent.asked_by(SIGINT) ==
        agent_core::effects{agent_core::tell{events::ends{why}}, agent_core::end_all{0ms}});
  CHECK(agent.asked_by(SIGINT) == agent_core::effects{agent_core::end_all{0ms}});
  const auto last = agent.ended({"stage-0", 5, 0, SIGKILL});
  REQUIRE(find<agent_core::leave>(last) != nullptr);
  CHECK(find<agent_core::leave>(last)->why == why);
  agent_core unbegun(who, begin_of_time);
  CHECK(find<agent_core::tell>(unbegun.asked_by(SIGHUP)) == nullptr);
  agent_core sealed(who, begin_of_time);  // whose launcher has not begun
  CHECK(find<agent_core::leave>(sealed.asked_to_end(begin_of_time)) != nullptr);
}

TEST_CASE("a session whose agent is ended by a signal says that, and not what it did to a stage") {
  auto session = ready_session();
  CHECK_FALSE(session.start(start_of("stage-1")).empty());
  const auto event = [&](const agent_event& what) {
    return session.heard(output_stream::out, encode(what), begin_of_time);
  };
  CHECK(reason(event(events::ends{"signal 2 (SIGINT) asked it to end"})) ==
        "node beta (10.0.0.2): its agent has ended: signal 2 (SIGINT) asked it to end; its "
        "processes are ended with it");
  CHECK(event(events::ended{"stage-1", 7, 0, SIGKILL}).empty());
  CHECK(session.processes().empty());
}

TEST_CASE("at the end of a run an agent that says nothing is told of, and soon given up") {
  auto session = patient_session();
  auto now = begin_of_time;
  CHECK(told_in_silence(session, now, 3s).empty());  // it may be busy
  session.expect_ends(now);
  CHECK(told_in_silence(session, now, 1400ms).empty());
  CHECK(told_in_silence(session, now, 3600ms) ==
        std::vector<std::string>{"node beta (10.0.0.2): its agent, or the ssh to it, does not "
                                 "answer; at the end of the run it is waited for 5 s at most"});
  CHECK(told_in_silence(session, now, 10s) ==
        std::vector<std::string>{
            "node beta (10.0.0.2): its agent, or the ssh to it, has not answered for 5 s at the "
            "end of the run; its processes may be left there, and end by themselves once it goes "
            "on"});
  CHECK(session.is_over());
  auto local = beta;
  local.host.clear();
  auto child = patient_session(local);
  now = begin_of_time;
  child.expect_ends(now);
  CHECK_THAT(told_in_silence(child, now, 6s).back(),
             ContainsSubstring("node beta: its agent has not answered for 5 s at the end of the "
                               "run; it is killed, and its processes with it"));
}

TEST_CASE(
    "at the end of a run an agent that is well is waited for, and its late processes are named") {
  auto session = patient_session();
  auto now = begin_of_time;
  session.expect_ends(now);
  for (int i = 0; i < 20; ++i) {
    CHECK(session.heard(output_stream::out, encode(agent_event(events::alive{})), now).empty());
    const auto told = told_in_silence(session, now, 1s);
    if (i != 1) CHECK(told.empty());
    if (i != 1) continue;
    REQUIRE(told.size() == 1);
    CHECK_THAT(told.front(), ContainsSubstring("node beta (10.0.0.2): stage-1 has not ended with "
                                               "the run: it may be stopped (SIGSTOP)"));
  }
  auto prompt = patient_session();
  auto later = begin_of_time;
  prompt.expect_ends(later);
  CHECK(told_in_silence(prompt, later, 1400ms).empty());
  CHECK(prompt.heard(output_stream::out, encode(agent_event(events::alive{})), later).empty());
  CHECK(told_in_silence(prompt, later, 100ms).size() == 1);
  CHECK_FALSE(
      session.heard(output_stream::out, encode(agent_event(events::ended{"stage-1", 7, 0, 0})), now)
          .empty());
  CHECK(told_in_silence(session, now, 20s).empty());
  CHECK_FALSE(session.is_over());
  CHECK_THAT(session.words_on_left(2500ms),
             ContainsSubstring("node beta (10.0.0.2): its agent, or the ssh to it, has not ended "
                               "within 2 s; its processes may be left there"));
}
