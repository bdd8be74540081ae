// Whichever of Catch2's and LibTorch's headers comes first, CHECK is Catch2's: LibTorch's would end
// the process, and with it what the test still had to look at and to clean up.

#include <catch2/catch_test_macros.hpp>

#include <c10/util/Logging.h>

#include <string_view>

#define TEXT_OF(...) #__VA_ARGS__
#define EXPANDED(...) TEXT_OF(__VA_ARGS__)

namespace {

constexpr std::string_view check = EXPANDED(CHECK(true));
static_assert(check.find("Catch") != std::string_view::npos);

}  // namespace

TEST_CASE("A CHECK in a test is Catch2's, after LibTorch's headers too") {
  CHECK(check.find("MessageLogger") == std::string_view::npos);
}
