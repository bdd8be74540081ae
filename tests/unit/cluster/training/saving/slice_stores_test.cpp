// What hosts keep of checkpoints on disks of their own: the folder, and the actors that copy files
// from each other.

#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>

#include <atomic>
#include <caf/all.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "actors/base/deadlines.hpp"
#include "actors/base/errors.hpp"
#include "actors/futures/future.hpp"
#include "actors/futures/requester.hpp"
#include "actors/messages/common.hpp"
#include "actors/messages/slices.hpp"
#include "actors/pipeline/pipeline.hpp"
#include "actors/saving/slice_store.hpp"
#include "actors/system.hpp"
#include "cluster/config/trainer_config.hpp"
#include "cluster/training/saving/checkpoint_keeper.hpp"
#include "engine/slices/file_copy.hpp"
#include "engine/slices/slice_folder.hpp"
#include "tests/refusal.hpp"
#include "tests/scratch_folder.hpp"
#include "tests/small_disk.hpp"
#include "tests/written_checkpoint.hpp"

namespace {

namespace fs = std::filesystem;
using namespace troupe;
using Catch::Matchers::ContainsSubstring;
using engine::slice_folder;
using tests::scratch_folder;

constexpr auto checkpoint = "step-000004-ab";

slice_folder opened(const fs::path& folder, const std::string& run = "run") {
  auto made = slice_folder::open(folder, run);
  INFO((made ? "" : made.error().text));
  REQUIRE(made);
  REQUIRE(*made);
  return std::move(**made);
}

/// A host whose disk gives back other bytes than it was given.
actors::slice_store_actor::behavior_type spoiling_store() {
  const auto done = [](const auto&) { return actors::acknowledged{}; };
  return {
      [](const actors::check_slices&) { return actors::slices_checked{}; },
      [](const actors::copy_slice& what) -> caf::result<actors::slice_copied> {
        return actors::to_caf({errc::bad_data, what.name + " has another checksum"});
      },
      [](const actors::read_slice_file&) { return actors::slice_piece{}; },
      [done](const actors::keep_manifest& what) { return done(what); },
      [done](const actors::keep_slices& what) { return done(what); },
      [](const actors::list_manifests&) { return actors::manifests_kept{}; },
  };
}

/// Two hosts, of which the first has a file of more than one piece.
struct two_stores {
  two_stores() {
    fs::create_directories(one / checkpoint);
    auto saved = engine::save_summed(one / checkpoint / "weights",
                                     engine::stream_of({{"a", at::arange(5 << 20, at::kFloat)}}));
    REQUIRE(saved);
    sums = *saved;
    first = actors::spawn_slice_store(system, opened(one));
    second = actors::spawn_slice_store(system, opened(other));
  }
  ~two_stores() {
    for (const auto& each : {first, second})
      caf::anon_send_exit(each, caf::exit_reason::user_shutdown);
  }

  result<actors::slice_copied> copy(const engine::file_sums& wanted,
                                    const std::string& name = "weights") {
    return ask
        .request<actors::slice_copied>(
            second,
            actors::copy_slice{checkpoint, name, wanted,
                               caf::actor_cast<caf::strong_actor_ptr>(first)},
            actors::usual_deadlines.write)
        .get();
  }
  result<actors::slices_checked> check(const actors::slice_store_actor& store) {
    return ask
        .request<actors::slices_checked>(store,
                                         actors::check_slices{checkpoint, {{"weights", sums}}},
                                         actors::usual_deadlines.write)
        .get();
  }

  scratch_folder folder;
  fs::path one = folder / "one", other = folder / "other";
  actors::system_config config;
  caf::actor_system system{config};
  actors::requester ask{system};
  engine::file_sums sums;
  actors::slice_store_actor first, second;
};

}  // namespace

TEST_CASE("Processes of one run that see one folder know it, and another run is kept out") {
  const scratch_folder folder;
  auto one = opened(folder / "a" / "slices");
  auto same = opened(folder / "a" / "slices");
  CHECK(one.disk() == same.disk());
  CHECK(opened(folder / "b").disk() != one.disk());
  CHECK(one.path() == folder / "a" / "slices");
  CHECK_FALSE(slice_folder::open(folder / "a" / "slices", "another").value());
  const auto word = one.disk();
  { const auto ended = std::move(one), too = std::move(same); }
  CHECK(opened(folder / "a" / "slices", "third").disk() != word);
}

TEST_CASE("A later process of a run opens its folder on a disk that has become full") {
  const scratch_folder folder;
  const tests::small_disk disk(folder / "disk");
  if (!disk.made()) SKIP("no disk can be mounted: " + disk.reason());
  const auto first = opened(folder / "disk");
  std::ofstream filler(folder / "disk/filler");
  while (filler.put('x').flush()) {
  }
  CHECK(opened(folder / "disk").disk() == first.disk());
  CHECK_FALSE(slice_folder::open(folder / "disk", "another").value_or(std::nullopt));
}

TEST_CASE("Of runs that open one folder at a time one at most has it, and no open fails") {
  const scratch_folder folder;
  std::atomic<int> holding = 0, together = 0, had = 0;
  std::mutex mutex;
  std::set<std::string> wrong;
  const auto complain = [&](const std::string& text) {
    const std::scoped_lock lock(mutex);
    wrong.insert(text);
  };
  const auto compete = [&](const std::string& run) {
    for (int i = 0; i < 2000; ++i) {
      const auto mine = slice_folder::open(folder.path(), run);
      if (!mine) complain(mine.error().text);
      if (!mine || !*mine) continue;
      ++had;
      if (++holding > 1) ++together;
      auto same = slice_folder::open(folder.path(), run);
      while (same && !*same) same = slice_folder::open(folder.path(), run);  // others are trying
      if (!same)
        complain("again: " + same.error().text);
      else if ((*same)->disk() != (*mine)->disk())
        complain("another disk");
      --holding;
    }
  };
  { const std::jthread one(compete, "one"), other(compete, "other"), third(compete, "third"); }
  CHECK(together == 0);
  CHECK(wrong == std::set<std::string>());
  CHECK(had > 0);
}

TEST_CASE("Slices of no checkpoint that is left are removed, but for those of later steps") {
  const scratch_folder folder;
  const auto all = opened(folder.path());
  for (const auto* name :
       {"step-000002-us-a", "step-000004-us-b", "step-000004-us-c", "step-000006-us-d",
        "step-1000000-us-e", "step-000002-others-f", "other"})
    fs::create_directories(folder / name);
  REQUIRE(all.remove_others("us", {"step-000004-us-c"}, 4));
  CHECK_FALSE(fs::exists(folder / "step-000002-us-a"));
  CHECK_FALSE(fs::exists(folder / "step-000004-us-b"));
  for (const auto* name : {"step-000004-us-c", "step-000006-us-d", "step-1000000-us-e",
                           "step-000002-others-f", "other"})
    CHECK(fs::exists(folder / name));
  for (const auto* name : {"", ".hidden", "../up", "a/b"}) {
    CHECK(all.file("step-1", name).error().code == errc::bad_frame);
    CHECK(all.file(name, "weights").error().code == errc::bad_frame);
  }
}

TEST_CASE("A host keeps the manifests of complete checkpoints, for their owner") {
  const scratch_folder folder;
  const auto all = opened(folder / "slices");
  fs::create_directories(folder / "slices" / "step-000002-us-a");
  REQUIRE(all.keep_manifest("step-000004-us-b", "{}"));
  REQUIRE(all.keep_manifest("step-000006-others-c", "{1}"));
  const auto kept = all.manifests("us");
  REQUIRE(kept);
  CHECK(*kept == std::map<std::string, std::string>{{"step-000004-us-b", "{}"}});
  CHECK(all.keep_manifest("../up", "{}").error().code == errc::bad_frame);
}

TEST_CASE("A host copies a file from another, piece by piece, and checks every byte") {
  two_stores hosts;
  const auto copied = hosts.copy(hosts.sums);
  INFO((copied ? "" : copied.error().text));
  REQUIRE(copied);
  CHECK(copied->file.name == (hosts.other / checkpoint / "weights").string());
  CHECK(copied->file.identity.bytes == hosts.sums.bytes);
  for (const auto& store : {hosts.first, hosts.second}) {
    const auto checked = hosts.check(store);
    REQUIRE(checked);
    CHECK(checked->whole.size() == 1);
    CHECK(checked->faults.empty());
  }
  CHECK(hosts.check(hosts.second)->whole.at("weights").identity == copied->file.identity);
}

TEST_CASE("A file with the checksums of older versions is copied and checked by those") {
  two_stores hosts;
  const auto newer =
      std::exchange(hosts.sums, tests::older_sums(hosts.sums, hosts.one / checkpoint / "weights"));
  CHECK(hosts.sums.tensors != newer.tensors);
  REQUIRE(hosts.copy(hosts.sums));
  CHECK(hosts.check(hosts.second)->faults.empty());
  hosts.sums.by = newer.by;
  CHECK_FALSE(hosts.check(hosts.second)->faults.empty());
}

TEST_CASE("A copy that is not what was written is refused, and nothing is left of it") {
  two_stores hosts;
  auto others = hosts.sums;
  others.tensors.at("a").front() = others.tensors.at("a").front() == '0' ? '1' : '0';
  const auto refused = error_of(hosts.copy(others));
  CHECK(refused.code == errc::bad_data);
  CHECK_THAT(refused.text, ContainsSubstring("tensor \"a\" has another checksum"));
  CHECK(fs::is_empty(hosts.other / checkpoint));
  auto longer = hosts.sums;
  ++longer.bytes;
  REQUIRE_FALSE(hosts.copy(longer));
  CHECK(fs::is_empty(hosts.other / checkpoint));
  const auto absent = error_of(hosts.copy(hosts.sums, "state"));
  CHECK_THAT(absent.text, ContainsSubstring("one/step-000004-ab/state cannot be opened"));
}

TEST_CASE("A host says of each file that it has not as it was written what is wrong with it") {
  two_stores hosts;
  const auto absent = hosts.check(hosts.second);
  REQUIRE(absent);
  CHECK(absent->whole.empty());
  CHECK_THAT(absent->faults.at("weights"), ContainsSubstring("cannot be read"));
  fs::create_directories(hosts.other / checkpoint);
  const auto nan = engine::save_summed(
      hosts.other / checkpoint / "weights",
      engine::stream_of({{"a", at::full({2}, std::numeric_limits<float>::quiet_NaN())}}));
  REQUIRE(nan);
  hosts.sums = *nan;
  CHECK_THAT(hosts.check(hosts.second)->faults.at("weights"),
             ContainsSubstring("holds NaN in tensor \"a\""));
}

TEST_CASE("A host whose folder cannot be read is named") {
  two_stores hosts;
  fs::remove_all(hosts.other);
  const cluster::slice_disks disks{.disks = {{"alpha", hosts.first}, {"beta", hosts.second}},
                                   .places = {}};
  const auto kept =
      cluster::manifests_on(hosts.ask, disks, cluster::checkpoint_folder(hosts.folder / "kept"), 0);
  REQUIRE_FALSE(kept);
  CHECK(kept.error().code == errc::io_failed);
  CHECK_THAT(
      kept.error().text,
      ContainsSubstring("checkpoint.storage: beta: " + hosts.other.string() + ": cannot be read"));
}

TEST_CASE(
    "A manifest that a host keeps of a newer Troupe is not passed over where it is the newest") {
  two_stores hosts;
  const cluster::checkpoint_folder folder(hosts.folder / "kept");
  const auto name = "step-000008-" + folder.owner() + "-ab";
  const auto done = hosts.ask
                        .request<actors::acknowledged>(
                            hosts.second, actors::keep_manifest{name, R"({"troupe_checkpoint":5})"},
                            actors::usual_deadlines.write)
                        .get();
  REQUIRE(done);
  const cluster::slice_disks disks{.disks = {{"alpha", hosts.first}, {"beta", hosts.second}},
                                   .places = {}};
  check_refused(cluster::manifests_on(hosts.ask, disks, folder, 7), errc::bad_config,
                "checkpoint.storage: beta: the manifest of " + name + " is of another Troupe");
  const auto older = cluster::manifests_on(hosts.ask, disks, folder, 8);
  REQUIRE(older);
  CHECK(older->empty());
}

TEST_CASE("A copy that a disk spoils is one copy less, and a file that was altered no checkpoint") {
  const std::string file = "weights.stage-0.safetensors";
  const scratch_folder folder;
  actors::system_config settings;
  caf::actor_system system{settings};
  actors::requester ask{system};
  const auto own = actors::spawn_slice_store(system, opened(folder / "own"));
  const auto spoiling = system.spawn(spoiling_store);
  const cluster::slice_disks disks{
      .disks = {{"alpha", own}, {"beta", spoiling}},
      .places = {{0, (folder / "own").string()}, {1, (folder / "other").string()}}};
  cluster::trainer_config config;
  config.checkpoint.dir = folder / "kept";
  auto keeper = cluster::checkpoint_keeper::open({config, {}}, 0, {}).value();
  std::vector<std::string> told;
  const auto print = [&](const std::string& line) { told.push_back(line); };
  const auto write = [&](std::uint64_t step, bool alters) {
    const cluster::checkpoint_parts parts{
        {},
        {"a"},
        ask,
        [&](std::uint64_t, const std::vector<std::string>& folders) {
          const fs::path to = folders.front();
          fs::create_directories(to);
          const auto sums =
              engine::save_summed(to / file, engine::stream_of({{"a", at::arange(100)}}));
          if (alters) fs::resize_file(to / file, 100);
          return actors::slices_under_way{
              {{0,
                {.weights = file},
                actors::settled_future<actors::slice_written>(
                    actors::slice_written{.files = {{file, sums.value()}}})}},
              actors::settled_future<std::optional<engine::loss_scaler>>(std::nullopt)};
        },
        &disks};
    keeper.told(step);
    keeper.write(step, false, parts, print);
    return keeper.last_step(std::chrono::seconds(60), print);
  };
  CHECK(write(4, false) == 4);
  CHECK(told.empty());
  const auto manifest = cluster::read_manifest(folder / "kept/step-000004/manifest.json");
  REQUIRE(manifest);
  CHECK(manifest->files.at(file).hosts == std::vector<std::string>{"alpha"});
  CHECK(write(8, true) == 4);
  REQUIRE(told.size() == 1);
  CHECK_THAT(told.front(), ContainsSubstring("no checkpoint of step 8: alpha: ") &&
                               ContainsSubstring("has 100 bytes, and its checkpoint wrote") &&
                               ContainsSubstring("; training goes on"));
  for (const auto& store : {own, spoiling})
    caf::anon_send_exit(store, caf::exit_reason::user_shutdown);
}

TEST_CASE("A file is put together from its pieces in their order alone") {
  const scratch_folder folder;
  const auto from = folder / "from", to = folder / "to";
  const auto sums = engine::save_summed(from, engine::stream_of({{"a", at::arange(100)}}));
  REQUIRE(sums);
  auto copy = engine::file_copy::open(to, *sums);
  REQUIRE(copy);
  const auto first = engine::read_bytes(from, 0, 300),
             rest = engine::read_bytes(from, 300, 1 << 20);
  REQUIRE(first);
  REQUIRE(rest);
  CHECK((*copy)->add(300, *rest).error().code == errc::bad_frame);
  CHECK((*copy)->add(0, at::arange(3)).error().code == errc::bad_frame);
  REQUIRE((*copy)->add(0, *first));
  CHECK((*copy)->add(0, *first).error().code == errc::bad_frame);
  CHECK_FALSE(fs::exists(to));
  REQUIRE((*copy)->add(300, *rest));
  CHECK((*copy)->add((*copy)->next(), *first).error().code == errc::bad_frame);
  CHECK((*copy)->complete());
  REQUIRE((*copy)->finish());
  CHECK(fs::file_size(to) == sums->bytes);
  CHECK_FALSE(engine::read_bytes(from, sums->bytes + 1, 1));
}
