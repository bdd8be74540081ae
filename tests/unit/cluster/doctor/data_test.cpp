// Data that a node is to read: opened there, by the examiner.

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include "cluster/doctor/findings_core.hpp"
#include "cluster/doctor/host/examine_data.hpp"
#include "tests/unit/scratch_folder.hpp"

using namespace troupe;
using namespace troupe::cluster::doctor;
using Catch::Matchers::ContainsSubstring;

TEST_CASE("What keeps a node from its data is a fact, with the path") {
  const auto known = engine::built_in_data();
  const auto there = examine_data({.source = "synthetic:1x2x2:10:8"}, known);
  CHECK(there.data_source == "synthetic:1x2x2:10:8");
  CHECK(there.data_error.empty());
  const tests::scratch_folder folder;
  const auto none = (folder / "none").string();
  const auto lacking = examine_data({.source = "folder:" + none}, known);
  CHECK(lacking.data_source == "folder:" + none);
  CHECK_THAT(lacking.data_error, ContainsSubstring(none) && !ContainsSubstring("working folder"));
  const auto relative = examine_data({.source = "text:none-here"}, known);
  CHECK_THAT(relative.data_error,
             ContainsSubstring("none-here") &&
                 ContainsSubstring("(its working folder is " +
                                   std::filesystem::current_path().string() + ")"));
}

TEST_CASE("A node is asked for its data by the program's own sources") {
  engine::data_registry known;
  known.add("mine",
            {"mine:NAME",
             [](std::string_view rest,
                const engine::dataset_options& how) -> result<std::unique_ptr<engine::dataset>> {
               return fail(errc::bad_data,
                           "no " + std::string(rest) + " of " + std::to_string(how.context));
             }});
  const auto asked = requests::data{.source = "mine:tokens", .context = 7};
  CHECK_THAT(examine_data(asked, known).data_error, ContainsSubstring("no tokens of 7"));
  patient beta;
  beta.name = "beta";
  beta.facts = examine_data(asked, known);
  bool is_said = false;
  for (const auto& each : host_findings(beta, true))
    is_said = is_said || (each.level == severity::error && each.topic == "data" &&
                          each.where == "beta" && each.text == beta.facts->data_error);
  CHECK(is_said);
}
