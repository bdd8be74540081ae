// When checkpoints are due, also after one that could not be written.

#include <ATen/ops/zeros.h>
#include <sys/inotify.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <caf/all.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "actors/futures/future.hpp"
#include "actors/futures/requester.hpp"
#include "actors/pipeline/pipeline.hpp"
#include "actors/system.hpp"
#include "cluster/config/trainer_config.hpp"
#include "cluster/training/saving/beginning.hpp"
#include "cluster/training/saving/checkpoint_keeper.hpp"
#include "cluster/training/saving/data_record.hpp"
#include "engine/data/dataset.hpp"
#include "messages/descriptor.hpp"
#include "tests/refusal.hpp"
#include "tests/scratch_folder.hpp"

namespace {

using namespace troupe;
using Catch::Matchers::ContainsSubstring;
using cluster::checkpoint_keeper;
using words = std::vector<std::string>;

cluster::trainer_config config_for(const tests::scratch_folder& folder, std::string every) {
  cluster::trainer_config config;
  config.checkpoint.dir = folder / "kept";
  config.checkpoint.every = std::move(every);
  config.train.on_fault = cluster::fault_policy::recover;
  return config;
}

constexpr std::chrono::seconds patience{60};

/// Data of which nothing is known but how many there are, their digest, and which cannot be read.
class told_data final : public engine::dataset {
 public:
  told_data(std::int64_t train, std::string digest, engine::left_out_samples unreadable = {})
      : train_(train), digest_(std::move(digest)), unreadable_(std::move(unreadable)) {}

  [[nodiscard]] std::int64_t size(engine::split part) const override {
    return part == engine::split::train ? train_ : 4;
  }
  [[nodiscard]] std::int64_t classes() const override { return 2; }
  [[nodiscard]] std::vector<std::int64_t> sample_shape() const override { return {1}; }
  /// One sample, nothing where that cannot be read.
  [[nodiscard]] result<engine::batch> read(engine::split part,
                                           std::span<const std::int64_t> indices) const override {
    const auto& bad = part == engine::split::train ? unreadable_.train : unreadable_.test;
    const bool is_read = std::ranges::find(bad, indices.front()) == bad.end();
    return engine::batch{at::zeros({is_read ? 1 : 0, 1}), {}};
  }
  [[nodiscard]] result<engine::left_out_samples> left_out() const override { return unreadable_; }
  [[nodiscard]] result<std::string> digest() const override { return digest_; }

 private:
  std::int64_t train_;
  std::string digest_;
  engine::left_out_samples unreadable_;
};

/// A keeper whose stages write nothing, or with data one byte for a weight, and fail where the test
/// says so.
struct kept_run {
  explicit kept_run(cluster::trainer_config of,
                    std::shared_ptr<const engine::dataset> read = nullptr)
      : config(std::move(of)),
        data(std::move(read)),
        keeper(checkpoint_keeper::open({config,
                                        {},
                                        data ? cluster::record_of(config.checkpoint, *data).value()
                                             : cluster::data_record()},
                                       0, checkpoint_keeper::clock::now())
                   .value()) {}

  [[nodiscard]] bool is_due(std::uint64_t step, bool is_asked = false) const {
    return keeper.is_due(step, checkpoint_keeper::clock::now(), is_asked);
  }

  /// Begins one of a step that is over, and waits for what becomes of it: the steps in the last one
  /// that is whole.
  std::uint64_t write(std::uint64_t step, std::optional<error> failure = {},
                      bool is_asked = false) {
    keeper.told(step);
    begin(step, failure, is_asked);
    return keeper.last_step(patience, print);
  }

  void begin(std::uint64_t step, std::optional<error> failure = {}, bool is_asked = false) {
    actors::slice_written files;
    if (data) files.files["w"] = {1, "h", {{"a", "0"}}};
    const auto written = actors::settled_future<actors::slice_written>(
        failure ? result<actors::slice_written>(tl::unexpected(*failure)) : files);
    const cluster::checkpoint_parts parts{
        [&](std::uint64_t, const std::string& where) {
          if (data) std::ofstream(std::filesystem::path(where) / "w") << 'x';
          return actors::slices_under_way{
              {{0, {}, written}},
              actors::settled_future<std::optional<engine::loss_scaler>>(std::nullopt)};
        },
        data ? words{"a"} : words(),
        ask,
        {},
        nullptr,
        data};
    keeper.write(step, is_asked, parts, print);
  }

  actors::system_config settings;
  caf::actor_system system{settings};
  actors::requester ask{system};
  words told;
  checkpoint_keeper::printer print = [this](const std::string& line) { told.push_back(line); };
  cluster::trainer_config config;
  std::shared_ptr<const engine::dataset> data;
  checkpoint_keeper keeper;
};

const error lost{errc::peer_lost, "stage-1 was killed"};
const error given_up{errc::cancelled, "stage-0: the request was given up"};
const error full{errc::io_failed, "stage-0: No space left on device"};

}  // namespace

TEST_CASE("A checkpoint is due every so many steps, once, and when it is asked for") {
  const tests::scratch_folder folder;
  kept_run run(config_for(folder, "4"));
  CHECK_FALSE(run.is_due(3));
  CHECK(run.is_due(3, true));
  CHECK(run.is_due(4));
  CHECK(run.write(4) == 4);
  CHECK_FALSE(run.is_due(4));
  CHECK_FALSE(run.is_due(4, true));
  CHECK_FALSE(run.is_due(5));
  CHECK(run.is_due(8));
  CHECK(run.told.empty());
}

TEST_CASE("A checkpoint is due as long after the last one as its period says") {
  const tests::scratch_folder folder;
  kept_run run(config_for(folder, "5m"));
  const auto begin = checkpoint_keeper::clock::now();
  using std::chrono::minutes;
  CHECK_FALSE(run.keeper.is_due(7, begin + minutes(4), false));
  CHECK(run.keeper.is_due(7, begin + minutes(5), false));
  CHECK(run.write(7) == 7);
  CHECK_FALSE(run.keeper.is_due(8, checkpoint_keeper::clock::now() + minutes(4), false));
  CHECK(run.keeper.is_due(8, checkpoint_keeper::clock::now() + minutes(5), false));
}

TEST_CASE("A checkpoint that a loss cut off is due again at once, and is warned of once") {
  for (const auto& why : {lost, given_up}) {
    INFO(why.text);
    const tests::scratch_folder folder;
    kept_run run(config_for(folder, "4"));
    CHECK(run.write(4, why) == 0);
    REQUIRE(run.told.size() == 1);
    CHECK(run.told.front() == "warning: no checkpoint of step 4: " + why.text +
                                  "; one is written when the run goes on");
    // The stages may have gone back.
    CHECK(run.is_due(3));
    CHECK(run.write(5, why) == 0);
    CHECK(run.is_due(6));
    CHECK(run.told.size() == 1);
    CHECK(run.write(6) == 6);
    CHECK_FALSE(run.is_due(7));
    CHECK(run.is_due(8));
    CHECK(run.told.size() == 1);
    // The next loss is another one.
    CHECK(run.write(8, why) == 6);
    CHECK(run.told.size() == 2);
    CHECK(run.is_due(9));
  }
}

TEST_CASE("A checkpoint that was cut off waits for the next update, and for the one under way") {
  const tests::scratch_folder folder;
  auto config = config_for(folder, "4");
  config.train.accumulate = 2;
  kept_run run(config);
  CHECK(run.write(4, lost) == 0);
  CHECK_FALSE(run.is_due(5));
  CHECK(run.is_due(6));
  actors::promise<actors::slice_written> later;
  const cluster::checkpoint_parts parts{
      [&](std::uint64_t, const std::string&) {
        return actors::slices_under_way{
            {{0, {}, later.future()}},
            actors::settled_future<std::optional<engine::loss_scaler>>(std::nullopt)};
      },
      {},
      run.ask};
  run.keeper.write(6, false, parts, run.print);
  CHECK_FALSE(run.is_due(10));
  CHECK(run.is_due(12));
  later.set(actors::slice_written{});
  run.keeper.told(6);
  CHECK(run.keeper.last_step(patience, run.print) == 6);
  CHECK_FALSE(run.is_due(10));
}

TEST_CASE("A checkpoint is not whole before its step has been reported") {
  const tests::scratch_folder folder;
  kept_run run(config_for(folder, "4"));
  const cluster::checkpoint_folder kept(run.config.checkpoint.dir);
  run.keeper.told(3);
  run.begin(4);
  CHECK(run.keeper.last_step(patience, run.print) == 0);
  CHECK(kept.steps().value().empty());
  REQUIRE(run.told.size() == 1);
  CHECK(run.told.front() ==
        "warning: no checkpoint of step 4: the run has lost it before it was reported; one is "
        "written when the run goes on");
  CHECK(run.is_due(4));
  run.begin(4);
  run.keeper.told(4);
  CHECK(run.keeper.last_step(patience, run.print) == 4);
  CHECK(kept.steps().value() == std::vector<std::uint64_t>{4});
}

TEST_CASE("A run that ends while a step of a checkpoint is under way waits for nobody") {
  const tests::scratch_folder folder;
  const auto config = config_for(folder, "4");
  {
    kept_run run(config);
    run.begin(4);
  }
  CHECK(cluster::checkpoint_folder(config.checkpoint.dir).steps().value().empty());
}

TEST_CASE("A checkpoint that was asked for and cut off is answered when it is there") {
  const tests::scratch_folder folder;
  kept_run run(config_for(folder, ""));
  CHECK(run.write(2, lost, true) == 0);
  CHECK(run.is_due(3));
  CHECK(run.write(3) == 3);
  CHECK_THAT(run.told.back(), ContainsSubstring("the checkpoint of step 3 is in "));
  CHECK_FALSE(run.is_due(4));
}

TEST_CASE("A checkpoint that the disk refused is warned of each time, and waits for its time") {
  const tests::scratch_folder folder;
  kept_run run(config_for(folder, "4"));
  CHECK(run.write(4, full) == 0);
  CHECK_FALSE(run.is_due(5));
  CHECK(run.is_due(8));
  CHECK(run.write(8, lost) == 0);
  CHECK(run.write(9, full) == 0);
  CHECK_FALSE(run.is_due(10));
  REQUIRE(run.told.size() == 3);
  CHECK(run.told.front() ==
        "warning: no checkpoint of step 4: " + full.text + "; training goes on");
  CHECK(run.told.back() == "warning: no checkpoint of step 9: " + full.text + "; training goes on");
}

TEST_CASE("A checkpoint whose file was altered meanwhile is warned of, and none is promised") {
  const tests::scratch_folder folder;
  kept_run run(config_for(folder, "4"));
  const error altered{errc::bad_data, "stage-0: its file has another checksum"};
  CHECK(run.write(4, altered) == 0);
  REQUIRE(run.told.size() == 1);
  CHECK(run.told.front() ==
        "warning: no checkpoint of step 4: " + altered.text + "; training goes on");
  CHECK_FALSE(run.is_due(5));
}

TEST_CASE("A run that a loss ends is not promised a checkpoint") {
  const tests::scratch_folder folder;
  auto config = config_for(folder, "4");
  config.train.on_fault = cluster::fault_policy::stop;
  kept_run run(config);
  CHECK(run.write(4, lost) == 0);
  REQUIRE(run.told.size() == 1);
  CHECK(run.told.front() == "warning: no checkpoint of step 4: " + lost.text);
}

TEST_CASE("A run knows which checkpoints it has written and kept, the newest first") {
  const tests::scratch_folder folder;
  {
    kept_run former(config_for(folder, "3"));
    CHECK(former.write(3) == 3);
    CHECK(former.write(6) == 6);
  }
  auto config = config_for(folder, "4");
  config.checkpoint.keep = 2;
  kept_run run(config);
  using steps = std::vector<std::uint64_t>;
  CHECK(run.keeper.own_steps().empty());
  CHECK(run.write(4) == 4);
  CHECK(run.keeper.own_steps() == steps{4});
  CHECK(run.write(8) == 8);
  CHECK(run.keeper.own_steps() == steps{8});
  CHECK(run.write(12) == 12);
  CHECK(run.keeper.own_steps() == steps{12, 8});
}

TEST_CASE("A checkpoint has a note that its step was evaluated, before it or after it") {
  const tests::scratch_folder folder;
  auto config = config_for(folder, "4");
  kept_run run(config);
  const auto is_evaluated = [&](std::uint64_t step) {
    const cluster::checkpoint_folder kept(config.checkpoint.dir);
    return cluster::whole_checkpoint{kept.path_of(step), {}}.is_evaluated();
  };
  run.keeper.evaluated(0);
  CHECK(run.write(4) == 4);
  run.keeper.evaluated(3);
  CHECK_FALSE(is_evaluated(4));
  run.keeper.evaluated(4);
  CHECK(is_evaluated(4));
  run.keeper.evaluated(8);
  CHECK(run.write(8) == 8);
  CHECK(is_evaluated(8));
  CHECK(run.write(12) == 12);
  CHECK_FALSE(is_evaluated(12));
  // While it was written.
  run.keeper.told(16);
  run.begin(16);
  run.keeper.evaluated(16);
  CHECK(run.keeper.last_step(patience, run.print) == 16);
  CHECK(is_evaluated(16));
  // What was told once is not told again, when the run has gone back.
  run.keeper.went_back(4);
  CHECK(run.write(8) == 8);
  CHECK(is_evaluated(8));
}

TEST_CASE("A run that goes on from a checkpoint elsewhere notes nothing there") {
  const tests::scratch_folder folder;
  const auto config = config_for(folder, "4");
  auto keeper = checkpoint_keeper::open({config, {}}, 4, {}).value();
  keeper.evaluated(4);
  CHECK(cluster::checkpoint_folder(folder / "kept").entries().value().empty());
}

TEST_CASE("Checkpoints behind the step that a run goes back to are written again") {
  const tests::scratch_folder folder;
  auto config = config_for(folder, "4");
  config.checkpoint.keep = 1;
  kept_run run(config);
  CHECK(run.write(4) == 4);
  CHECK(run.write(8) == 8);
  run.keeper.went_back(0);
  CHECK(run.keeper.own_steps().empty());
  CHECK(run.is_due(4));
  CHECK(run.write(4) == 4);
  CHECK(run.keeper.own_steps() == std::vector<std::uint64_t>{4});
  CHECK(run.is_due(8));
  CHECK(run.write(8) == 8);
  CHECK(run.keeper.own_steps() == std::vector<std::uint64_t>{8});
}

TEST_CASE("A run that begins behind an earlier step after all reports a step before it is kept") {
  const tests::scratch_folder folder;
  kept_run run(config_for(folder, "4"));
  run.keeper.told(8);  // in what it was to begin from
  run.keeper.begin_behind(4);
  CHECK(run.is_due(8));
  run.begin(8);
  CHECK(run.keeper.last_step(patience, run.print) == 4);
  CHECK_FALSE(std::filesystem::exists(folder / "kept" / "step-000008"));
  CHECK(run.write(8) == 8);
}

TEST_CASE("Who tries whether a folder takes checkpoints shows nothing there that could stay") {
  const tests::scratch_folder folder;
  auto config = config_for(folder, "4");
  std::filesystem::create_directory(config.checkpoint.dir);
  const descriptor watch(::inotify_init1(IN_NONBLOCK | IN_CLOEXEC));
  REQUIRE(::inotify_add_watch(watch.get(), config.checkpoint.dir.c_str(), IN_CREATE | IN_MOVED_TO) >
          0);
  REQUIRE(checkpoint_keeper::try_folder(config.checkpoint, config.places));
  std::array<char, 4096> events{};
  const auto bytes = ::read(watch.get(), events.data(), events.size());
  const std::string seen(events.data(), bytes > 0 ? static_cast<std::size_t>(bytes) : 0);
  CHECK(seen.find("trial") == std::string::npos);
  CHECK(seen.find(".tmp") == std::string::npos);
}

TEST_CASE("A checkpoint notes what its data were, and is refused for other data") {
  const tests::scratch_folder folder;
  auto config = config_for(folder, "4");
  config.data.source = "folder:/pictures";
  const auto data =
      std::make_shared<const told_data>(48, "abc", engine::left_out_samples{{3, 17}, {0}});
  CHECK(kept_run(config, data).write(4) == 4);
  const auto place = cluster::checkpoint_folder(config.checkpoint.dir).path_of(4);
  const cluster::whole_checkpoint noted{
      place, cluster::read_manifest(place / cluster::checkpoint_folder::manifest_name).value()};
  using unread = cluster::checkpoint_manifest::unread_samples;
  CHECK(noted.manifest.left_out == unread{{3, 17}, {0}});
  const auto refusal = [&](const cluster::whole_checkpoint& of, const told_data& now) {
    const auto same = cluster::check_settings(
        of, {config, {}, cluster::record_of(config.checkpoint, now).value()});
    CHECK((same || same.error().code == errc::bad_config));
    return same ? std::string() : same.error().text;
  };
  CHECK(refusal(noted, {48, "abc"}).empty());
  CHECK_THAT(refusal(noted, {49, "abd"}),
             ContainsSubstring("folder:/pictures has changed since ") &&
                 ContainsSubstring("it had 48 training and 4 test samples, and has 49 training") &&
                 ContainsSubstring("troupe checkpoint export"));
  CHECK_THAT(refusal(noted, {48, "abd"}), ContainsSubstring("as many samples, but not the same"));
  // Of data without a digest the numbers alone are compared.
  CHECK(refusal(noted, {48, ""}).empty());
  CHECK_FALSE(refusal(noted, {47, ""}).empty());
  // A checkpoint of an older version says nothing of its data.
  CHECK(refusal({folder / "old", {}}, {47, "abd"}).empty());
}

TEST_CASE("A sample that was left out and can be read when a run goes on is said by its name") {
  cluster::whole_checkpoint from{"/kept/step-000004", {}};
  from.manifest.left_out = {{3, 17}, {0}};
  const auto words_with = [&](engine::left_out_samples unreadable) {
    return cluster::words_on_read_again(from, told_data(48, "abc", std::move(unreadable)));
  };
  CHECK(words_with({{3, 17, 20}, {0}}).empty());
  CHECK(words_with({{3}, {0}}) ==
        "1 sample could not be read before /kept/step-000004 was written, and can be read now: "
        "training sample 17; the steps from here on use it");
  CHECK_THAT(words_with({{3, 17}, {}}), ContainsSubstring("now: test sample 0; "));
  CHECK_THAT(words_with({}), ContainsSubstring("3 samples could") &&
                                 ContainsSubstring("the first is training sample 3; "));
}

TEST_CASE("Nothing is found out of the data of a run without checkpoints") {
  const told_data data(48, "abc");
  cluster::trainer_config config;
  CHECK(cluster::record_of(config.checkpoint, data).value().empty());
  config.checkpoint.resume = "/a/checkpoint";
  CHECK(cluster::record_of(config.checkpoint, data).value() ==
        cluster::data_record{
            {"data.train_samples", "48"}, {"data.test_samples", "4"}, {"data.digest", "abc"}});
}

TEST_CASE("A checkpoint may be named by its manifest") {
  const tests::scratch_folder folder;
  auto config = config_for(folder, "4");
  {
    kept_run run(config);
    CHECK(run.write(4) == 4);
  }
  const auto own = cluster::checkpoint_folder(folder / "kept").path_of(4);
  config.checkpoint.resume = own;
  const auto by_folder = cluster::find_resumed({config, {}});
  config.checkpoint.resume = own / cluster::checkpoint_folder::manifest_name;
  const auto by_manifest = cluster::find_resumed({config, {}});
  REQUIRE_FALSE(by_folder);  // it has no weights: these stages write none
  REQUIRE_FALSE(by_manifest);
  CHECK(by_manifest.error() == by_folder.error());
}

TEST_CASE("What is no checkpoint is refused with what it is, and what to name instead") {
  const tests::scratch_folder folder;
  auto config = config_for(folder, "4");
  const auto refused = [&](const std::string& which) {
    config.checkpoint.resume = which;
    return error_of(cluster::find_resumed({config, {}}), errc::bad_data).text;
  };
  {
    kept_run run(config);
    CHECK(run.write(4) == 4);
    CHECK(run.write(8) == 8);
  }
  const std::string kept = folder / "kept";
  CHECK_THAT(refused(kept), ContainsSubstring(kept + " is a folder of checkpoints; its newest is " +
                                              kept + "/step-000008"));
  std::ofstream(folder / "weights") << "w";
  CHECK_THAT(
      refused(folder / "weights"),
      ContainsSubstring("/weights is no checkpoint: it has no manifest.json; --init begins"));
  std::filesystem::remove(folder / "kept/step-000008/manifest.json");
  CHECK_THAT(refused(kept + "/step-000008"),
             ContainsSubstring("/step-000008 is no checkpoint: it has no manifest.json; there is"));
}
