// Who is asked for the data of a run that has lost the process that had them.

#include <catch2/catch_test_macros.hpp>
#include <cstddef>
#include <vector>

#include "cluster/recovery/data_places_core.hpp"

using namespace troupe::cluster;

namespace {

using places = std::vector<std::size_t>;

}  // namespace

TEST_CASE("On one machine the process in the lost one's place is asked for the data alone") {
  CHECK(places_for_data({"", "", ""}, 1, "") == places{1});
  CHECK(places_for_data({""}, 0, "") == places{0});
}

TEST_CASE("A process on the host that had the data is asked first, then one on each other host") {
  CHECK(places_for_data({"alpha", "alpha", "beta", "gamma"}, 0, "alpha") == places{0, 2, 3});
  CHECK(places_for_data({"beta", "alpha", "beta", "gamma"}, 0, "alpha") == places{1, 0, 3});
  CHECK(places_for_data({"gamma", "beta", "alpha", "alpha"}, 3, "alpha") == places{3, 0, 1});
}

TEST_CASE("Where that host is lost the process in the lost one's place is asked first") {
  CHECK(places_for_data({"beta", "beta", "gamma"}, 0, "alpha") == places{0, 2});
  CHECK(places_for_data({"gamma", "beta", "beta"}, 2, "alpha") == places{2, 0});
}
