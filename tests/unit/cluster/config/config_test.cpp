#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_floating_point.hpp>
#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "cluster/config/program_info.hpp"
#include "cluster/config/trainer_config.hpp"
#include "messages/base/near_miss.hpp"

using namespace troupe;
using namespace troupe::cluster;

TEST_CASE("every option is complete, and named once") {
  const auto table = option_table({});
  CHECK(check_unique(table));
  std::set<std::string> names;
  std::set<std::string> flags{"--config", "--help", "--version", "--join", "--node-name"};
  for (const option& entry : table) {
    INFO(entry.name());
    CHECK(names.insert(entry.name()).second);
    CHECK_FALSE(entry.help.empty());
    if (entry.flag.empty()) continue;  // of files alone
    CHECK(flags.insert(entry.flag).second);
    CHECK((entry.off_flag.empty() || flags.insert(entry.off_flag).second));
    CHECK(entry.flag.starts_with("--"));
    CHECK(entry.value_name.empty() == std::holds_alternative<switch_field>(entry.field));
  }
  for (const option& entry : table) CHECK((entry.rival.empty() || names.contains(entry.rival)));
}

TEST_CASE("every default is a value that its own option accepts") {
  const auto table = option_table({});
  for (const option& entry : table) {
    const std::string usual = default_text(entry);
    if (usual.empty()) continue;
    INFO(entry.name() << " = " << usual);
    CHECK(parse_value(entry, usual));
  }
}

TEST_CASE("what a config has in place of its defaults is told by name, but for where it runs") {
  const auto table = option_table({});
  trainer_config config;
  CHECK(changed_values(table, config, {}).empty());
  config.train.seed = 7;
  config.data.shuffle = false;
  config.checkpoint.every = "5m";
  config.model.init_skip = {"fc.*", "bn1.*"};
  config.optimizer.options = {{"lr", 0.008}, {"nesterov", 1}};
  config.train.steps = 4;
  config.train.epochs.reset();
  config.train.loss_scale = 0;
  config.cluster.nodes.emplace_back().name = "alpha";
  config.cluster.ssh_options = {"-J", "somebody@bastion"};
  CHECK(changed_values(table, config, {}) ==
        std::map<std::string, std::string>{{"train.seed", "7"},
                                           {"train.steps", "4"},
                                           {"train.loss_scale", "dynamic"},
                                           {"data.shuffle", "false"},
                                           {"checkpoint.every", "5m"},
                                           {"model.init_skip", "fc.*, bn1.*"},
                                           {"optimizer.lr", "0.008"},
                                           {"optimizer.nesterov", "true"}});
  // A program may have other defaults.
  config.optimizer.options.clear();
  CHECK(changed_values(table, config, config).empty());
}

TEST_CASE("a near miss is found by edits, swaps and beginnings") {
  const std::vector<std::string_view> known{"stages", "schedule", "micro_batches", "lr"};
  CHECK(nearest("stagse", known) == "stages");
  CHECK(nearest("Stages", known) == "stages");
  CHECK(nearest("micro-batches", known) == "micro_batches");
  CHECK(nearest("sched", known) == "schedule");
  CHECK(nearest("l", known) == "lr");
  CHECK(nearest("automatic", {"even", "auto"}) == "auto");
  CHECK(nearest("stages_of_the_pipeline", {"lr", "stage", "stages"}) == "stages");
  CHECK(nearest("lrnotthatlong", known) == std::nullopt);  // two letters are no beginning
  CHECK(nearest("s", known) == std::nullopt);
  CHECK(nearest("elephants", known) == std::nullopt);
  CHECK(nearest("", known) == std::nullopt);
  CHECK(nearest(std::string(100000, 's'), known) == std::nullopt);
}

TEST_CASE("threads are shared out so that stages never exceed the cores") {
  const auto threads = [](std::uint32_t stages, int given, unsigned cores) {
    pipeline_config pipeline;
    pipeline.stages = stages;
    pipeline.threads_per_stage = given;
    return threads_per_stage(pipeline, cores);
  };
  CHECK(threads(2, 0, 2) == 1);
  CHECK(threads(2, 0, 9) == 4);
  CHECK(threads(8, 0, 2) == 1);
  CHECK(threads(2, 0, 0) == 1);
  CHECK(threads(2, 3, 2) == 3);
}

TEST_CASE("a linear learning rate falls to zero over the run, a constant one stays") {
  optimizer_config optimizer;
  optimizer.options["lr"] = 0.5;
  CHECK(learning_rate(optimizer, 7, 10) == 0.5);
  optimizer.schedule.curve = lr_schedule::linear;
  CHECK(learning_rate(optimizer, 1, 10) == 0.5);
  CHECK_THAT(learning_rate(optimizer, 6, 10), Catch::Matchers::WithinULP(0.25, 2));
  CHECK_THAT(learning_rate(optimizer, 10, 10), Catch::Matchers::WithinULP(0.05, 8));
  CHECK(learning_rate(optimizer, 11, 10) == 0);
  CHECK(learning_rate(optimizer, 99, 10) == 0);
}

TEST_CASE("checkpoints come every so many steps, or after a time that a clock can count") {
  const auto period = [](std::string every) {
    checkpoint_config config;
    config.every = std::move(every);
    return period_of(config);
  };
  CHECK(period("40")->steps == 40);
  CHECK(period("5m")->time == std::chrono::minutes(5));
  CHECK(period("2h")->time == std::chrono::hours(2));
  CHECK(period("1000000000s")->time == std::chrono::seconds(1'000'000'000));
  for (const std::string wrong : {"0", "0s", "-1", "5 m", "1.5h", "5d", "m", "1000000001",
                                  "1000000001s", "16666667m", "277778h", "99999999999999999999s"}) {
    INFO(wrong);
    CHECK_FALSE(period(wrong));
  }
}
