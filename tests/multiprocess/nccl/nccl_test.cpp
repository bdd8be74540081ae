// Ranks of NCCL in processes of their own, over the NCCL of tests: they agree, and when one dies,
// hangs or differs every other is told in time.

#include <signal.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <cstdio>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "messages/base/error.hpp"
#include "tests/bytes_of.hpp"
#include "tests/multiprocess/nccl/rank_group.hpp"
#include "tests/scratch_folder.hpp"

namespace {

namespace fs = std::filesystem;
using Catch::Matchers::ContainsSubstring;
using troupe::errc;
using troupe::tests::rank_end;
using troupe::tests::rank_group;

const std::string fake = TROUPE_FAKE_NCCL;
constexpr int told = 3;
constexpr double noticed_within_ms = 1000;

/// What a rank said about the operation that failed.
struct failure {
  double at_ms = 0;
  errc code{};
  std::string text;
};

failure failure_of(const rank_end& end) {
  INFO(end.out << end.err);
  REQUIRE(end.code == told);
  failure said;
  int code = 0;
  int used = 0;
  REQUIRE(std::sscanf(end.out.c_str(), "%lf %d %n", &said.at_ms, &code, &used) == 2);
  said.code = static_cast<errc>(code);
  said.text = end.out.substr(static_cast<std::size_t>(used));
  return said;
}

/// The shared memory of the NCCL of tests that is there now.
std::set<std::string> worlds() {
  std::set<std::string> names;
  for (const auto& each : fs::directory_iterator("/dev/shm"))
    if (const auto name = each.path().filename().string(); name.starts_with("fake-nccl-"))
      names.insert(name);
  return names;
}

/// Settings by which NCCL would leave this machine.
const std::vector<std::string> leading_away{"NCCL_SOCKET_IFNAME=eth7",
                                            "NCCL_COMM_ID=192.0.2.1:999"};
const std::string as_set = "NCCL_SOCKET_IFNAME eth7, NCCL_COMM_ID 192.0.2.1:999\n";
const std::string on_loopback = "NCCL_SOCKET_IFNAME =lo, NCCL_COMM_ID unset\n";

TEST_CASE("NCCL's sockets are where the first communicator of a process was to have them") {
  const auto found = [](const std::string& scenario) {
    rank_group group(fake, 1, scenario, {{0, leading_away}});
    const rank_end end = group.wait(0);
    INFO(end.err);
    REQUIRE(end.code == 0);
    return end.out;
  };
  CHECK(found("claim loopback") == on_loopback);
  CHECK(found("claim network") == as_set);
  CHECK(found("claim loopback network") == on_loopback + on_loopback);
  CHECK(found("claim network loopback") ==
        as_set +
            "NCCL's sockets in this process have been on the network since its first "
            "communicator, and these ranks are to keep to loopback; start the process again\n");
}

TEST_CASE("ranks keep NCCL's sockets to loopback, whatever the environment says") {
  const troupe::tests::scratch_folder folder;
  const auto log = folder.path() / "sockets";
  auto settings = leading_away;
  settings.push_back("FAKE_NCCL_LOG=" + log.string());
  rank_group group(fake, 2, "conform", {{0, settings}, {1, settings}});
  for (int rank = 0; rank < 2; ++rank) {
    const rank_end end = group.wait(rank);
    INFO("rank " << rank << "\n" << end.out << end.err);
    CHECK(end.code == 0);
  }
  CHECK(troupe::tests::bytes_of(log) == on_loopback + on_loopback);
}

TEST_CASE("ranks in processes of their own agree on every operation") {
  const int ranks = GENERATE(1, 2, 3, 4);
  const auto before = worlds();
  rank_group group(fake, ranks, "conform");
  for (int rank = 0; rank < ranks; ++rank) {
    const rank_end end = group.wait(rank);
    INFO("rank " << rank << " of " << ranks << "\n" << end.out << end.err);
    CHECK(end.code == 0);
    CHECK(end.out.empty());
  }
  CHECK(worlds() == before);
}

TEST_CASE("a rank that is killed in the middle of a reduction is known to all others at once") {
  const int ranks = GENERATE(2, 3, 4);
  const int victim = GENERATE(0, 1);
  rank_group group(fake, ranks, "reduce", {{victim, {"FAKE_NCCL_SCRIPT=ncclAllReduce:3:die"}}});
  const rank_end dead = group.wait(victim);
  CHECK(dead.signal == SIGKILL);
  for (int rank = 0; rank < ranks; ++rank) {
    if (rank == victim) continue;
    const failure said = failure_of(group.wait(rank));
    CHECK(said.code == errc::peer_lost);
    // The first rank that notices leaves too, and may be the one that the next rank has lost.
    CHECK_THAT(said.text, ContainsSubstring("rank ") && ContainsSubstring(" is lost"));
    CHECK(said.at_ms - dead.at_ms < noticed_within_ms);
  }
}

TEST_CASE("a death that only NCCL sees is told as well") {
  rank_group group(fake, 3, "unwatched",
                   {{0, {"FAKE_NCCL_SEES_DEATHS=1"}},
                    {1, {"FAKE_NCCL_SEES_DEATHS=1", "FAKE_NCCL_SCRIPT=ncclAllReduce:3:die"}},
                    {2, {"FAKE_NCCL_SEES_DEATHS=1"}}});
  const rank_end dead = group.wait(1);
  CHECK(dead.signal == SIGKILL);
  for (const int rank : {0, 2}) {
    const failure said = failure_of(group.wait(rank));
    CHECK(said.code == errc::peer_lost);
    CHECK_THAT(said.text, ContainsSubstring("remote process exited or there was a network error"));
    CHECK(said.at_ms - dead.at_ms < noticed_within_ms);
  }
}

TEST_CASE("a rank that dies before all have joined is known to the others") {
  rank_group group(fake, 3, "reduce", {{1, {"FAKE_NCCL_SCRIPT=ncclCommInitRankConfig:1:die"}}});
  const rank_end dead = group.wait(1);
  CHECK(dead.signal == SIGKILL);
  for (const int rank : {0, 2}) {
    const failure said = failure_of(group.wait(rank));
    CHECK(said.code == errc::peer_lost);
    CHECK(said.at_ms - dead.at_ms < noticed_within_ms);
  }
}

TEST_CASE("a rank whose abort hangs ends its process and says so") {
  rank_group group(fake, 2, "reduce",
                   {{0, {"FAKE_NCCL_SCRIPT=ncclCommAbort:1:hang"}},
                    {1, {"FAKE_NCCL_SCRIPT=ncclAllReduce:3:die"}}});
  const rank_end dead = group.wait(1);
  const rank_end hung = group.wait(0);
  CHECK(hung.code == 1);
  CHECK_THAT(hung.err, ContainsSubstring("NCCL (replicas of stage 0, rank 0 of 2): ncclCommAbort "
                                         "has not returned for 2.") &&
                           ContainsSubstring("so this process ends"));
  CHECK(hung.at_ms - dead.at_ms < 2000 + noticed_within_ms);
}

TEST_CASE("a rank with another version of NCCL is refused, and the others hear of it") {
  rank_group group(fake, 3, "reduce", {{2, {"FAKE_NCCL_VERSION=22703"}}});
  const failure other = failure_of(group.wait(2));
  CHECK(other.code == errc::version_mismatch);
  CHECK_THAT(other.text, ContainsSubstring("this rank has NCCL 2.27.3 and rank 0 has 2.28.9"));
  for (const int rank : {0, 1}) {
    const failure said = failure_of(group.wait(rank));
    CHECK(said.code == errc::peer_lost);
    CHECK(said.at_ms - other.at_ms < noticed_within_ms);
  }
}

TEST_CASE("a rank whose NCCL is too old says so before it joins") {
  rank_group group(fake, 2, "reduce", {{1, {"FAKE_NCCL_VERSION=21405"}}});
  const rank_end old = group.wait(1);
  CHECK(old.code == 1);
  CHECK_THAT(old.out, ContainsSubstring("NCCL 2.14.5 in " + fake + " is too old"));
  CHECK(failure_of(group.wait(0)).code == errc::peer_lost);
}

}  // namespace
