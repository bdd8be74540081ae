// What a launcher and its agents write to each other, a line each.

#include <array>
#include <catch2/catch_test_macros.hpp>
#include <string>
#include <vector>

#include "tests/unit/cluster/agents_fixture.hpp"

namespace {

using namespace troupe;
using namespace troupe::cluster;
using namespace troupe::tests;

}  // namespace

TEST_CASE("every order and event comes back from its line as it was") {
  const std::vector<agent_order> some_orders{
      orders::begin{7}, start_of("stage-0"), orders::kill{"x"}, orders::suspend{},
      orders::resume{}, orders::alive{},     orders::end{2000}};
  for (const auto& each : some_orders) {
    const auto line = encode(each);
    INFO(line);
    CHECK(line.find('\n') == std::string::npos);
    CHECK(decode_order(line).value() == each);
  }
  const std::vector<agent_event> some_events{
      who,
      events::started{"stage-0"},
      events::refused{"stage-0", "no \"such\" folder"},
      events::line{"stage-0", output_stream::err, "tab\tand \x1b[1mcolour"},
      events::ended{"stage-0", 12, 3, 0},
      events::ended{"stage-0", 12, 0, 9, true},
      events::alive{},
      events::asked_to_end{},
      events::signalled{10},
      events::ends{"signal 2 (SIGINT) asked it to end"}};
  for (const auto& each : some_events) {
    const auto line = encode(each);
    INFO(line);
    CHECK(line.find('\n') == std::string::npos);
    CHECK(decode_event(line).value() == each);
  }
}

TEST_CASE("a line calls a message's members by names that launcher and agent of two builds share") {
  CHECK(encode(agent_order(orders::alive{})) == R"({"is":"alive"})");
  CHECK(encode(agent_order(orders::end{2000})) == R"({"grace_ms":2000,"is":"end"})");
  CHECK(encode(agent_order(orders::start{"stage-0", {"--join"}, {{"A", "b"}}, "/tmp", "0f"})) ==
        R"({"arguments":["--join"],"environment":{"A":"b"},"is":"start","name":"stage-0",)"
        R"("secret":"0f","working_folder":"/tmp"})");
  CHECK(encode(agent_event(events::hello{1, "b0", "h", 2, 3, 4, {"fd00::2/64"}})) ==
        R"({"addresses":["fd00::2/64"],"build":"b0","clock_ns":4,"cores":2,"host":"h",)"
        R"("is":"hello","memory_bytes":3,"protocol":1})");
  CHECK(encode(agent_event(events::line{"stage-0", output_stream::err, "\xff"})) ==
        "{\"err\":true,\"is\":\"line\",\"name\":\"stage-0\",\"text\":\"\xEF\xBF\xBD\"}");
  CHECK(encode(agent_event(events::ended{"stage-0", 12, 3, 0, true})) ==
        R"({"code":3,"is":"ended","lacked_memory":true,"name":"stage-0","pid":12,"signal":0})");
  // Members that only another build knows are ignored.
  CHECK(decode_order(R"({"is":"end","grace_ms":1,"more":[{}]})").value() ==
        agent_order(orders::end{1}));
}

TEST_CASE("a line that is no message is refused, and never quoted") {
  for (const auto* line :
       {"",
        "hello",
        "{}",
        "[1]",
        "null",
        "7",
        "\"alive\"",
        "[\"is\",\"alive\"]",
        "{\"is\":\"start\"}",
        "{\"is\":7}",
        "{\"is\":null}",
        "{\"is\":[\"alive\"]}",
        "{\"is\":\"begin\",\"silence_ms\":\"secret\"}",
        "{\"is\":\"fly\"}",
        "{\"is\":\"begin\",\"silence_ms\":null}",
        "{\"is\":\"begin\",\"silence_ms\":1e999}",
        "{\"is\":\"kill\",\"name\":{\"secret\":1}}",
        "{\"is\":\"line\",\"name\":\"x\",\"text\":\"y\"}",
        "{\"is\":\"line\",\"name\":\"x\",\"text\":\"y\",\"err\":1}",
        "{\"is\":\"ended\",\"name\":\"x\",\"pid\":1,\"code\":0,\"signal\":0}",
        "{\"is\":\"hello\",\"protocol\":1,\"build\":\"b\",\"host\":\"h\",\"cores\":1,"
        "\"memory_bytes\":1,\"clock_ns\":null}"}) {
    INFO(line);
    REQUIRE_FALSE(decode_order(line));
    CHECK(decode_order(line).error().code == errc::bad_frame);
    CHECK(decode_order(line).error().text.find("secret") == std::string::npos);
    CHECK_FALSE(decode_event(line));
  }
}

TEST_CASE("a number that its member cannot hold is refused, and not changed to one that it can") {
  const auto order = [](const std::string& word, const std::string& number) {
    return decode_order(R"({"is":")" + word + "_ms\":" + number + "}");
  };
  const auto begin = [&](const std::string& number) { return order(R"(begin","silence)", number); };
  const auto end = [&](const std::string& number) { return order(R"(end","grace)", number); };
  CHECK(begin("4294967295").value() == agent_order(orders::begin{4294967295}));
  CHECK(end("0").value() == agent_order(orders::end{0}));
  for (const auto* number :
       {"-1", "4294967296", "18446744073709551616", "1e300", "1.5", "7.0", "7e2", "true", "\"7\""})
    for (const auto& refused : {begin(number), end(number)}) {
      INFO(number);
      REQUIRE_FALSE(refused);
      CHECK(refused.error().code == errc::bad_frame);
      CHECK(refused.error().text == "a line that is no order");
    }

  // Another host's agent may be of any build.
  const auto with = [](std::string line, const std::string& member, const std::string& number) {
    const auto at = line.find('"' + member + "\":") + member.size() + 3;
    return line.replace(at, line.find_first_of(",}", at) - at, number);
  };
  const auto told = encode(agent_event(events::ended{"stage-0", 12, 3, 0}));
  const auto hello = encode(agent_event(who));
  CHECK(decode_event(with(told, "code", "-7")).value() ==
        agent_event(events::ended{"stage-0", 12, -7, 0}));
  const std::vector<std::array<std::string, 3>> wrong{
      {told, "pid", "1e18"},       {told, "pid", "1000000000000000000"},
      {told, "pid", "4294967308"}, {told, "code", "0.5"},
      {told, "signal", "1e300"},   {told, "signal", "4294967305"},
      {hello, "cores", "-1"},      {hello, "cores", "2.5"},
      {hello, "protocol", "-1"},   {hello, "memory_bytes", "-1"},
      {hello, "clock_ns", "1e18"}, {hello, "clock_ns", "9223372036854775808"}};
  for (const auto& [line, member, number] : wrong) {
    INFO(member << " " << number);
    CHECK(decode_event(with(line, member, "1")));
    const auto refused = decode_event(with(line, member, number));
    REQUIRE_FALSE(refused);
    CHECK(refused.error().text == "a line that is no event");
  }
}
