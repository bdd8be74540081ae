#pragma once

#include <catch2/catch_test_macros.hpp>
#include <chrono>
#include <string>
#include <variant>

#include "cluster/launch/agents/agent_core.hpp"
#include "cluster/launch/agents/session_core.hpp"

// An agent and a launcher's session with it that have greeted each other.

namespace troupe::tests {

using namespace troupe::cluster;
using namespace std::chrono_literals;

using time_point = agent_core::time_point;
inline const time_point begin_of_time{};

inline const events::hello who{.build = "b1", .host = "beta", .cores = 2, .memory_bytes = 1 << 30};

/// An agent that its launcher has greeted.
inline agent_core begun_agent() {
  agent_core agent(who, begin_of_time);
  CHECK(agent.begin() == agent_core::effects{agent_core::tell{who}});
  CHECK(agent.heard(encode(agent_order(orders::begin{1000})), begin_of_time).empty());
  return agent;
}

inline orders::start start_of(const std::string& name) {
  return {name, {"--join", "x"}, {{"A", "b"}}, "/tmp", "00ff"};
}

/// Has the agent start a process.
inline void run(agent_core& agent, const std::string& name) {
  const auto order = start_of(name);
  CHECK(agent.heard(encode(agent_order(order)), begin_of_time) ==
        agent_core::effects{agent_core::launch{order}});
  CHECK(agent.started(name) == agent_core::effects{agent_core::tell{events::started{name}}});
}

template <class Effect, class Effects>
const Effect* find(const Effects& all) {
  for (const auto& each : all)
    if (const auto* found = std::get_if<Effect>(&each)) return found;
  return nullptr;
}

inline const agent_place beta{"beta", "10.0.0.2", "b1", "/opt/trainer", "ssh", "/opt/own"};

inline session_core new_session() {
  return {beta, 1000ms, 5000ms, begin_of_time};
}

inline session_core ready_session() {
  auto session = new_session();
  CHECK(session.heard(output_stream::out, magic_line(), begin_of_time).empty());
  const auto answer = session.heard(output_stream::out, encode(agent_event(who)), begin_of_time);
  CHECK(answer ==
        session_core::effects{session_core::send{orders::begin{1000}}, session_core::ready{who}});
  CHECK(session.is_ready());
  return session;
}

inline std::string reason(const session_core::effects& all) {
  const auto* lost = find<session_core::lost>(all);
  return lost == nullptr ? "not lost" : lost->why.text;
}

}  // namespace troupe::tests
