// How the replicas of a stage sum, whether neighbours send by the same library, and what is said of
// it.
#include "engine/collective/sum_choice_core.hpp"

#include <catch2/catch_test_macros.hpp>
#include <string>
#include <vector>

#include "tests/refusal.hpp"

using namespace troupe;
using namespace troupe::engine;

namespace {

sum_offer offer(int replica, const std::string& device = "", const std::string& machine = "a",
                const std::string& library = "NCCL 2.28.9") {
  return {.stage = "stage-0 of replica " + std::to_string(replica),
          .library = library,
          .why_not = {},
          .device = device.empty() ? "cuda:" + std::to_string(replica) : device,
          .machine = machine,
          .network = "of " + machine};
}

sum_offer without(int replica, const std::string& why) {
  auto made = offer(replica, "cpu", "a", "");
  made.why_not = why;
  return made;
}

sum_choice chosen(const std::vector<sum_offer>& replicas, const sum_wish& wish = {}) {
  const auto made = choose_sum(replicas, wish);
  REQUIRE(made);
  return *made;
}

}  // namespace

TEST_CASE("replicas on GPUs of one machine sum by NCCL, in order unless told otherwise") {
  CHECK(chosen({offer(0), offer(1)}).way == replica_sum_way::ordered);
  CHECK(chosen({offer(0), offer(1)}).why == "by NCCL 2.28.9 in a fixed order");
  const auto fast = chosen({offer(0), offer(1)}, {.fast = true});
  CHECK(fast.way == replica_sum_way::fast);
  CHECK(fast.why == "by NCCL 2.28.9 in its own order, which promises no bits (reduce = \"fast\")");
}

TEST_CASE("where a replica has no NCCL all sum over links, and the reason is said") {
  const auto all = chosen({without(0, "it is on the CPU"), without(1, "it is on the CPU")});
  CHECK(all.way == replica_sum_way::links);
  CHECK(all.why == "over links (it is on the CPU)");
  CHECK(chosen({offer(0), without(1, "NCCL is half installed")}, {.fast = true}).why ==
        "over links (stage-0 of replica 1: NCCL is half installed)");
}

TEST_CASE("between machines NCCL is for networks that are declared trusted") {
  const std::vector<sum_offer> apart{offer(0, "cuda:0", "a"), offer(1, "cuda:0", "b")};
  CHECK(chosen(apart).why ==
        "over links (stage-0 of replica 1 and stage-0 of replica 0 are on different machines, and "
        "their network is not declared trusted (--network trusted): NCCL encrypts nothing)");
  CHECK(chosen(apart, {.network_is_trusted = true}).way == replica_sum_way::ordered);
  const std::vector<sum_offer> unknown{offer(0, "cuda:0", ""), offer(1, "cuda:1", "")};
  CHECK(chosen(unknown).way == replica_sum_way::links);
}

TEST_CASE("NCCL's sockets are on loopback unless a stage of the run has replicas apart") {
  const sum_wish trusted{.network_is_trusted = true};
  const auto close = chosen({offer(0), offer(1)});
  CHECK(close.sockets == socket_reach::loopback);
  CHECK(chosen({offer(0), offer(1)}, trusted).sockets == socket_reach::loopback);
  const auto apart = chosen({offer(0, "cuda:0", "a"), offer(1, "cuda:0", "b")}, trusted);
  CHECK(apart.sockets == socket_reach::network);
  CHECK(sockets_for({close, close}) == socket_reach::loopback);
  CHECK(sockets_for({close, apart, close}) == socket_reach::network);  // perhaps in one process
}

TEST_CASE("replicas of one machine that have no loopback in common are apart") {
  auto elsewhere = offer(1);
  elsewhere.network = "of a container";
  CHECK(chosen({offer(0), elsewhere}).why ==
        "over links (stage-0 of replica 1 and stage-0 of replica 0 are in different network "
        "namespaces of a machine, and their network is not declared trusted (--network trusted): "
        "NCCL encrypts nothing)");
  const auto trusted = chosen({offer(0), elsewhere}, {.network_is_trusted = true});
  CHECK(trusted.way == replica_sum_way::ordered);
  CHECK(trusted.sockets == socket_reach::network);
}

TEST_CASE("NCCL's sockets that are open already decide, since they stay where they are") {
  const sum_wish trusted{.network_is_trusted = true};
  auto one = offer(0, "cuda:0", "a");
  one.sockets = socket_reach::network;
  CHECK(chosen({one, offer(1)}).why ==
        "over links (stage-0 of replica 0: NCCL's sockets in its process are on the network, which "
        "was trusted when they were opened)");
  CHECK(chosen({one, offer(1)}, trusted).sockets == socket_reach::network);
  one.sockets = socket_reach::loopback;
  CHECK(chosen({one, offer(1)}).way == replica_sum_way::ordered);
  CHECK(chosen({offer(1, "cuda:0", "b"), one}, trusted).why ==
        "over links (stage-0 of replica 0: NCCL's sockets in its process are on loopback, since "
        "all ranks shared a machine when they were opened)");
}

TEST_CASE("more replicas than GPUs sum over links") {
  CHECK(chosen({offer(0), offer(1), offer(2, "cuda:1")}).why ==
        "over links (stage-0 of replica 2 and stage-0 of replica 1 share cuda:1: there are more "
        "replicas than GPUs)");
}

TEST_CASE("replicas with different versions are refused in one line") {
  CHECK(
      error_of(choose_sum({offer(0), offer(1, "", "a", "NCCL 2.27.3")}, {}), errc::version_mismatch)
          .text ==
      "stage-0 of replica 1 has NCCL 2.27.3 and stage-0 of replica 0 has NCCL 2.28.9; install "
      "the same on all machines");
}

TEST_CASE("neighbours on GPUs of their own send by NCCL, whose sockets reach as far as needed") {
  const auto near = reach_between(offer(0), offer(1), false).value();
  CHECK(near == socket_reach::loopback);
  const auto far = reach_between(offer(0, "cuda:0", "a"), offer(1, "cuda:0", "b"), true).value();
  CHECK(far == socket_reach::network);
}

TEST_CASE("by UCX neighbours of one machine send, also where they share a GPU, and no others") {
  const auto ucx = [](int replica, const std::string& machine = "a",
                      const std::string& version = "UCX 1.22.0") {
    return offer(replica, "cuda:0", machine, version);
  };
  CHECK(check_copies_between(ucx(0), ucx(1)));
  const auto refused = [&](const sum_offer& other) {
    return error_of(check_copies_between(ucx(0), other));
  };
  CHECK(refused(ucx(1, "b")).text ==
        "stage-0 of replica 0 and stage-0 of replica 1 are on different machines, and UCX copies "
        "from GPU to GPU inside one");
  CHECK(refused(ucx(1, "a", "UCX 1.13.1")).code == errc::version_mismatch);
  CHECK(refused(without(1, "it is on the CPU")).text == "stage-0 of replica 1: it is on the CPU");
}

TEST_CASE("neighbours that cannot send by NCCL are refused with which and why") {
  const auto refused = [](const sum_offer& one, const sum_offer& other) {
    return error_of(reach_between(one, other, false));
  };
  CHECK(refused(offer(0), without(1, "it is on the CPU")).code == errc::transport_missing);
  CHECK(refused(offer(0), without(1, "it is on the CPU")).text ==
        "stage-0 of replica 1: it is on the CPU");
  CHECK(refused(offer(0), offer(1, "", "a", "NCCL 2.27.3")).code == errc::version_mismatch);
  CHECK(refused(offer(0), offer(1, "cuda:0")).text ==
        "stage-0 of replica 0 and stage-0 of replica 1 share cuda:0, and NCCL takes one rank a "
        "GPU; give each stage a GPU of its own");
  CHECK(refused(offer(0, "cuda:0", "a"), offer(1, "cuda:0", "b")).text ==
        "stage-0 of replica 1 and stage-0 of replica 0 are on different machines, and their "
        "network is not declared trusted (--network trusted): NCCL encrypts nothing");
}

TEST_CASE("one line tells of all stages, and of which where they differ") {
  const sum_choice nccl{replica_sum_way::ordered, "by NCCL 2.28.9 in a fixed order"};
  const sum_choice links{replica_sum_way::links, "over links (it is on the CPU)"};
  CHECK(to_line({nccl, nccl}) == "replicas sum their gradients by NCCL 2.28.9 in a fixed order");
  CHECK(to_line({nccl, links, nccl}) ==
        "replicas sum their gradients by NCCL 2.28.9 in a fixed order (stages 0, 2); over links "
        "(it is on the CPU) (stage 1)");
}
