// Which stages lose all their versions with one host.

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <cstddef>
#include <string>
#include <vector>

#include "cluster/recovery/shared_hosts_core.hpp"

using namespace troupe::cluster;
using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::EndsWith;

TEST_CASE("Nothing is said where each stage's versions are kept on two hosts") {
  CHECK(words_on_shared_hosts({}, {}).empty());
  CHECK(words_on_shared_hosts({{"stage-0", "alpha", "gpu1"}, {"stage-1", "beta", "gpu2"}}, {1, 0})
            .empty());
  // The second copy of a single stage is with the trainer.
  CHECK(words_on_shared_hosts({{"stage-0", "alpha", "gpu1"}}, {0}).empty());
}

TEST_CASE("A stage whose versions are kept on one host is said with its nodes and that host") {
  CHECK_THAT(
      words_on_shared_hosts(
          {{"stage-0", "alpha", "gpu1"}, {"stage-1", "beta", "gpu1"}, {"stage-2", "gamma", "gpu2"}},
          {1, 2, 0}),
      ContainsSubstring(" of stage-0 (nodes alpha and beta, host gpu1) are on one host: if "
                        "that is lost the run goes back to its last checkpoint"));
  CHECK_THAT(
      words_on_shared_hosts({{"stage-0", "alpha", "gpu1"}, {"stage-1", "alpha", "gpu1"}}, {1, 0}),
      ContainsSubstring(" of stage-0 (node alpha, host gpu1), stage-1 (node alpha, host "
                        "gpu1) are on one host: "));
}

TEST_CASE("Of many stages on one host the first are named, and the others counted") {
  const auto words_on = [](std::size_t stages) {
    std::vector<stage_site> sites;
    std::vector<std::size_t> second;
    for (std::size_t i = 0; i < stages; ++i) {
      sites.push_back({"stage-" + std::to_string(i), "alpha", "gpu1"});
      second.push_back((i + 1) % stages);
    }
    return words_on_shared_hosts(sites, second);
  };
  CHECK_THAT(words_on(4), ContainsSubstring("stage-3 (node alpha, host gpu1) are on "));
  const auto words = words_on(6);
  CHECK_THAT(words, ContainsSubstring("stage-3 (node alpha, host gpu1) and 2 more stages are on "));
  CHECK(words.find("stage-4") == std::string::npos);
  CHECK_THAT(words, EndsWith("some stages"));
}
