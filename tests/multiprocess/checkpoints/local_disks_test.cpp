// Checkpoints on the hosts' own disks: which host keeps what, how a run goes on when a disk is
// lost, and what is refused. Two agents of this machine are the hosts, each with a folder of its
// own.

#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <filesystem>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "cluster/checkpoints/checkpoint_folder.hpp"
#include "engine/slices/slice_folder.hpp"
#include "tests/multiprocess/checkpoints/checkpoint_run.hpp"
#include "tests/multiprocess/recovery/calm_run.hpp"
#include "tests/small_disk.hpp"
#include "tests/written_checkpoint.hpp"

namespace {

namespace fs = std::filesystem;
using namespace troupe;
using namespace troupe::tests;
using Catch::Matchers::ContainsSubstring;
using name_set = std::set<std::string>;

const name_set all_files{"manifest.json", "state.stage-0.safetensors", "state.stage-1.safetensors",
                         "weights.stage-0.safetensors", "weights.stage-1.safetensors"};

/// Hosts with disks of their own, and the trainer's folder.
class disks {
 public:
  explicit disks(const words& hosts = {"alpha", "beta"}) {
    std::string text = "[cluster]\nlaunch = \"local\"\n[checkpoint]\nstorage = \"local\"\n";
    for (const auto& host : hosts)
      text += "[[node]]\nname = \"" + host + "\"\ncores = 1\ncheckpoint_dir = \"" +
              of(host).string() + "\"\n";
    write_text(config(), text);
  }

  [[nodiscard]] fs::path of(const std::string& host) const { return folder_ / host; }
  [[nodiscard]] fs::path checkpoints() const { return folder_ / "trainer"; }
  [[nodiscard]] fs::path file(const std::string& name) const { return folder_ / name; }
  [[nodiscard]] fs::path config() const { return folder_ / "run.toml"; }

  /// A run of two stages with a checkpoint every fourth step.
  [[nodiscard]] words run(const words& more, int steps = 12) const {
    return two_stages(with(kept(), more), steps);
  }
  [[nodiscard]] words large_run(const words& more, int steps) const {
    return large_two_stages(with(kept(), more), steps);
  }

  /// The folders of checkpoints that a host keeps.
  [[nodiscard]] name_set kept_by(const std::string& host) const {
    name_set names;
    for (const auto& each : names_in(of(host) / "slices"))
      if (!each.starts_with('.')) names.insert(each);
    return names;
  }

  /// Where a host keeps the files of a step's checkpoint.
  [[nodiscard]] fs::path slices(const std::string& host, std::uint64_t step) const {
    const auto manifest = cluster::read_manifest(
        cluster::checkpoint_folder(checkpoints()).path_of(step) / "manifest.json");
    REQUIRE(manifest);
    return of(host) / "slices" / manifest->slices;
  }

 private:
  [[nodiscard]] words kept() const {
    return {"--config",           config().string(),
            "--checkpoint-dir",   checkpoints().string(),
            "--checkpoint-every", "4"};
  }

  scratch_folder folder_;
};

/// The weights of a run that nothing has happened to, and that keeps nothing.
fs::path undisturbed(const words& more = {}, int steps = 12) {
  static std::vector<calm_run> kept;  // or a test of another build may remove them
  return kept.emplace_back(TROUPE_PROGRAM, two_stages(more, steps)).weights();
}

/// A run that is killed when its checkpoint of step 8 is there.
void run_to_8(const disks& all, const words& more = {}) {
  REQUIRE(run_program(all.run(more), at_checkpoint("step-000008", SIGKILL)).signal == SIGKILL);
}

/// Ends a stage of a launch on this machine, a grandchild of the trainer.
void kill_stage(pid_t trainer, const std::string& name) {
  for (const auto agent : children_of(trainer))
    for (const auto stage : children_of(agent)) {
      const auto words = bytes_of("/proc/" + std::to_string(stage) + "/cmdline");
      if (words.find(name) != std::string::npos) ::kill(stage, SIGKILL);
    }
}

/// Has a run whose stages are all lost go back to a checkpoint: else the trainer keeps versions.
const words recovering_over_tcp{"--on-fault", "recover", "--link", "tcp"};

/// A run that goes on from its checkpoint of step 8 and keeps one alone. Behind that of step 12,
/// when the hosts have removed the first, that of step 12 is damaged and all stages are killed.
program_outcome lose_all_behind_12(const disks& all, const std::string& resume) {
  constexpr int steps = 20;
  const auto first = run_program(all.run({}, steps), at_checkpoint("step-000008", SIGKILL));
  REQUIRE(first.signal == SIGKILL);
  const auto before = all.slices("beta", 8);
  bool done = false;
  const auto lose = [&](pid_t trainer, std::string_view line) {
    if (done || line.find("step 14/") != 0) return;
    done =
        wait_until_gone(before) && wait_until_gone(all.of("alpha") / "slices" / before.filename());
    for (const std::string host : {"alpha", "beta"})
      fs::resize_file(all.slices(host, 12) / "weights.stage-1.safetensors", 100);
    for (const auto* const stage : {"stage-0", "stage-1"}) kill_stage(trainer, stage);
  };
  auto outcome =
      run_program(all.run(with(recovering_over_tcp, {"--resume", resume, "--checkpoint-keep", "1",
                                                     "--save", all.file("weights").string()}),
                          steps),
                  lose);
  CHECK(done);
  return outcome;
}

/// Goes on from a checkpoint to the end, to the weights of a run that nothing has happened to.
program_outcome resume(const disks& all, const std::string& from) {
  auto outcome = run_program(all.run({"--resume", from, "--save", all.file("resumed").string()}));
  REQUIRE(outcome.code == 0);
  check_same_weights(undisturbed(), all.file("resumed"));
  return outcome;
}

program_outcome command(const words& more) {
  return run_other(TROUPE_COMMAND, with({"checkpoint"}, more));
}

}  // namespace

TEST_CASE("Each host keeps its stages' slices and the next host's, and a lost disk loses nothing",
          "[untimed]") {
  const disks all;
  run_to_8(all);
  const auto checkpoint = all.checkpoints() / "step-000008";
  CHECK(names_in(checkpoint) == name_set{"manifest.json"});
  for (const std::string host : {"alpha", "beta"})
    CHECK(names_in(all.slices(host, 8)) == all_files);
  const auto verified = command({"verify", checkpoint.string()});
  CHECK(verified.code == 0);
  CHECK_THAT(verified.out,
             ContainsSubstring("weights.stage-0.safetensors is not on this host, but on alpha "
                               "and beta\n"));
  CHECK_THAT(verified.out, ContainsSubstring("state.stage-1.safetensors is not on this host, but "
                                             "on beta and alpha\n"));
  fs::remove_all(all.of("beta"));
  const auto resumed = resume(all, "latest");
  CHECK_THAT(resumed.err, ContainsSubstring("goes on from the checkpoint of step 8"));
  CHECK_THAT(resumed.err, ContainsSubstring("beta no longer has 4 files of the checkpoint of step "
                                            "8 ("));
  CHECK_THAT(resumed.err, ContainsSubstring("; alpha has a copy"));
  CHECK(names_in(all.slices("beta", 12)) == all_files);
}

TEST_CASE("A run of other stages and hosts goes on from slices that hosts have left", "[untimed]") {
  const disks all;
  const words of_two{"--logical-replicas", "2"};
  const auto expected = undisturbed(of_two);
  run_to_8(all, {"--replicas", "2", "--zero", "1"});
  CHECK(names_in(all.slices("beta", 8)).size() == 7);
  fs::remove_all(all.of("alpha"));
  const disks more({"alpha", "beta", "gamma"});
  fs::copy(all.of("beta"), more.of("beta"), fs::copy_options::recursive);
  fs::copy(all.checkpoints(), more.checkpoints(), fs::copy_options::recursive);
  const auto resumed = run_program(training(
      with(of_two, {"--stages", "3", "--schedule", "interleaved-1f1b", "--config",
                    more.config().string(), "--checkpoint-dir", more.checkpoints().string(),
                    "--resume", "latest", "--save", more.file("resumed").string()})));
  REQUIRE(resumed.code == 0);
  CHECK_THAT(resumed.err, ContainsSubstring("alpha no longer has 6 files"));
  CHECK_THAT(resumed.err, ContainsSubstring(" came from beta to gamma"));
  check_same_weights(expected, more.file("resumed"));
  // And one that has a single host, whose folder has all.
  const auto alone = all.of("beta");
  fs::copy(all.checkpoints() / "step-000008", alone / "step-000008", fs::copy_options::recursive);
  CHECK_THAT(command({"verify", alone.string()}).out, ContainsSubstring("whole, 6 files"));
  CHECK(command({"export", alone.string(), all.file("exported").string()}).code == 0);
  const auto again = run_program(training(
      with(of_two, {"--stages", "4", "--schedule", "gpipe", "--checkpoint-dir", alone.string(),
                    "--resume", "latest", "--save", all.file("again").string()})));
  REQUIRE(again.code == 0);
  check_same_weights(expected, all.file("again"));
  CHECK(names_in(alone / "step-000012").size() == 9);
}

TEST_CASE("A bit that is flipped on one host's disk is made up for by the other's copy",
          "[untimed]") {
  const disks all;
  run_to_8(all);
  flip_a_bit(all.slices("alpha", 8) / "weights.stage-0.safetensors");
  fs::resize_file(all.slices("beta", 8) / "state.stage-1.safetensors", 100);
  const auto resumed = resume(all, "8");
  CHECK_THAT(resumed.err, ContainsSubstring("alpha no longer has 1 file of the checkpoint of step "
                                            "8 ("));
  CHECK_THAT(resumed.err, ContainsSubstring("has another checksum); beta has a copy"));
  CHECK_THAT(resumed.err, ContainsSubstring("has 100 bytes, and its checkpoint wrote"));
}

namespace {

/// Has a run write its checkpoint of step 8. Returns a file of it that alpha's disk is not to read.
fs::path unreadable_on_alpha(const disks& all) {
  run_to_8(all);
  const auto file = all.slices("alpha", 8) / "weights.stage-0.safetensors";
  fs::create_hard_link(file, all.file("bad"));
  return file;
}

/// How a stage of one host cannot read a file that its host has compared with the manifest, which
/// takes two reads, in one process.
const words once_both_have_checked{"TROUPE_UNREADABLE_AFTER=2"};

/// `when`: see with_unreadable.
program_outcome run_unreadable(const disks& all, const words& more, const words& when) {
  return run_other("/usr/bin/env", with_unreadable(all.file("bad"), all.run(more), when));
}

}  // namespace

TEST_CASE("A file that one host's disk cannot read is made up for by the other's copy",
          "[untimed]") {
  const disks all;
  const auto file = unreadable_on_alpha(all);
  const auto resumed = run_unreadable(all, {"--resume", "8", "--save", all.file("resumed")}, {});
  REQUIRE(resumed.code == 0);
  CHECK_THAT(resumed.err,
             ContainsSubstring("alpha no longer has 1 file of the checkpoint of step "
                               "8 (" +
                               file.string() + " cannot be read: Input/output error (tensor \"") &&
                 ContainsSubstring("); beta has a copy"));
  check_same_weights(undisturbed(), all.file("resumed"));
}

TEST_CASE("A file that cannot be read after it was checked is made up for by the other's copy",
          "[untimed]") {
  const disks all;
  const auto file = unreadable_on_alpha(all);
  const auto resumed =
      run_unreadable(all, {"--resume", "8", "--save", all.file("resumed")}, once_both_have_checked);
  REQUIRE(resumed.code == 0);
  const auto unread = file.string() + " cannot be read: Input/output error";
  CHECK_THAT(
      resumed.err,
      ContainsSubstring(unread + "; the hosts are asked for this checkpoint once more") &&
          ContainsSubstring("alpha no longer has 1 file of the checkpoint of step 8 (" + unread) &&
          ContainsSubstring("); beta has a copy"));
  check_same_weights(undisturbed(), all.file("resumed"));
}

TEST_CASE(
    "A file that cannot be read after it was checked, and has no copy, is refused, or passed over",
    "[untimed]") {
  const disks all;
  const std::string name = unreadable_on_alpha(all).filename();
  fs::remove(all.slices("beta", 8) / name);
  const std::string nowhere = "step-000008: " + name + " was kept by alpha and beta, and no host";
  const auto refused = run_unreadable(all, {"--resume", "8"}, once_both_have_checked);
  CHECK(refused.code == 2);
  CHECK_THAT(
      refused.last_line(),
      ContainsSubstring(nowhere) && ContainsSubstring("; the one of step 4 is whole: --resume 4"));
  const auto passed = run_unreadable(all, {"--resume", "auto", "--save", all.file("resumed")},
                                     once_both_have_checked);
  REQUIRE(passed.code == 0);
  CHECK_THAT(passed.err, ContainsSubstring(nowhere) &&
                             ContainsSubstring("; this checkpoint is passed over") &&
                             ContainsSubstring("goes on from the checkpoint of step 4"));
  check_same_weights(undisturbed(), all.file("resumed"));
}

TEST_CASE("A run that goes back to slices that turn out to be unreadable goes on from older ones",
          "[untimed]") {
  const disks all;
  constexpr int steps = 20;  // or a busy machine may have done all when the checkpoint is there
  const std::string name = "weights.stage-0.safetensors";
  bool done = false;
  const auto lose = [&](pid_t env, std::string_view line) {
    if (done || line.find("step 9/") != 0) return;
    done = wait_until_there(all.checkpoints() / "step-000008");
    fs::create_hard_link(all.slices("alpha", 8) / name, all.file("bad"));
    fs::remove(all.slices("beta", 8) / name);
    for (const auto* const stage : {"stage-0", "stage-1"}) kill_stage(env, stage);
  };
  const auto outcome = run_other(
      "/usr/bin/env",
      with_unreadable(all.file("bad"),
                      all.run(with(recovering_over_tcp, {"--save", all.file("weights")}), steps),
                      once_both_have_checked),
      lose);
  REQUIRE(outcome.code == 0);
  CHECK(done);
  CHECK_THAT(
      outcome.err,
      ContainsSubstring("the hosts are asked for this checkpoint once more") &&
          ContainsSubstring("the run cannot go back to its checkpoint of step 8: ") &&
          ContainsSubstring("step-000008: " + name + " was kept by alpha and beta, and no host") &&
          ContainsSubstring("the run goes back to its checkpoint of step 4"));
  check_same_weights(undisturbed({}, steps), all.file("weights"));
}

TEST_CASE("Slices with the checksums of older versions are read, and an altered one is made up for",
          "[untimed]") {
  const disks all;
  run_to_8(all);
  const auto manifest = all.checkpoints() / "step-000008" / "manifest.json";
  const auto slices = all.slices("alpha", 8);
  const auto older = older_manifest(manifest, slices);
  for (const auto& each :
       {manifest, slices / "manifest.json", all.slices("beta", 8) / "manifest.json"})
    write_text(each, older);
  CHECK(cluster::read_manifest(manifest)->files.begin()->second.sums.by ==
        engine::checksum_kind::blake2b);
  flip_a_bit(slices / "weights.stage-0.safetensors");
  const auto resumed = resume(all, "latest");
  CHECK_THAT(resumed.err, ContainsSubstring("goes on from the checkpoint of step 8"));
  CHECK_THAT(resumed.err, ContainsSubstring("has another checksum); beta has a copy"));
  CHECK_THAT(resumed.err, !ContainsSubstring("beta no longer has"));
}

TEST_CASE("A file that no host has any more is refused by its name and theirs", "[untimed]") {
  const disks all;
  run_to_8(all);
  for (const std::string host : {"alpha", "beta"})
    fs::remove(all.slices(host, 8) / "weights.stage-1.safetensors");
  const auto refused = run_program(all.run({"--resume", "latest"}));
  CHECK(refused.code == 2);
  CHECK_THAT(refused.last_line(),
             ContainsSubstring("step-000008: weights.stage-1.safetensors was kept by beta and "
                               "alpha, and no host of this run has it; alpha: "));
  const std::string offer = "; the one of step 4 is whole: --resume 4";
  CHECK_THAT(refused.last_line(), ContainsSubstring(offer));
  CHECK_THAT(run_program(all.run({"--resume", "8"})).last_line(), ContainsSubstring(offer));
  // Nor is that hidden by what is wrong with the older one.
  const auto older = all.checkpoints() / "step-000004" / "manifest.json";
  const auto text = bytes_of(older);
  write_text(older, R"({"troupe_checkpoint": 5})");
  CHECK_THAT(run_program(all.run({"--resume", "latest"})).last_line(),
             ContainsSubstring("weights.stage-1.safetensors was kept by beta and alpha") &&
                 ContainsSubstring("; " + older.string() + " is of another Troupe"));
  write_text(older, text);
  const auto passed = resume(all, "auto");
  CHECK_THAT(passed.err, ContainsSubstring("this checkpoint is passed over"));
  CHECK_THAT(passed.err, ContainsSubstring("goes on from the checkpoint of step 4"));
  for (const std::string host : {"alpha", "beta"}) fs::remove_all(all.of(host));
  const auto none = run_program(all.run({"--resume", "latest"}, 16));
  CHECK(none.code == 2);
  CHECK_THAT(none.last_line(), ContainsSubstring("; there is no older one that is whole"));
  const auto fresh = run_program(all.run({"--resume", "auto"}, 16));
  REQUIRE(fresh.code == 0);
  CHECK_THAT(fresh.err,
             ContainsSubstring(" has no whole checkpoint: the run starts from the beginning"));
}

TEST_CASE("A trainer that has lost its folder gets the manifests from the hosts", "[untimed]") {
  const disks all;
  run_to_8(all);
  fs::remove_all(all.checkpoints());
  const auto resumed = resume(all, "latest");
  CHECK_THAT(resumed.err,
             ContainsSubstring("had no manifest; the hosts kept those of 2 checkpoints"));
  CHECK_THAT(resumed.err, ContainsSubstring("goes on from the checkpoint of step 8"));
  fs::remove_all(all.checkpoints());
  const auto complete = run_program(all.run({"--resume", "auto"}));
  CHECK(complete.code == 0);
  CHECK_THAT(complete.err, ContainsSubstring("nothing is left to do"));
  // Of a newer Troupe.
  const auto newest = all.slices("alpha", 12).filename();
  for (const std::string host : {"alpha", "beta"})
    write_text(all.of(host) / "slices" / newest / "manifest.json", R"({"troupe_checkpoint": 5})");
  fs::remove_all(all.checkpoints());
  const auto refused = run_program(all.run({"--resume", "auto"}));
  CHECK(refused.code == 2);
  CHECK_THAT(refused.last_line(), ContainsSubstring("alpha: the manifest of " + newest.string() +
                                                    " is of another Troupe"));
  CHECK(all.kept_by("alpha").contains(newest.string()));
}

TEST_CASE("A trainer that has lost its folder after the last step evaluates once more",
          "[untimed]") {
  const disks all;
  auto job = all.run({"--resume", "auto"}, 4);
  std::ranges::replace(job, "--no-eval", "--eval");
  REQUIRE(run_program(job).code == 0);
  // The note that the last evaluation was told is lost too.
  fs::remove_all(all.checkpoints());
  const auto again = run_program(job);
  CHECK(again.code == 0);
  CHECK_THAT(again.err, ContainsSubstring("its last evaluation is left to do") &&
                            ContainsSubstring("evaluation after step 4: "));
  CHECK_THAT(run_program(job).err, ContainsSubstring("nothing is left to do"));
}

TEST_CASE("A trainer whose folder has older checkpoints than the hosts goes on from the hosts'",
          "[untimed]") {
  const disks all;
  run_to_8(all);
  const auto slices = all.slices("alpha", 8).filename();
  fs::remove_all(all.checkpoints() / "step-000008");
  const auto resumed = resume(all, "auto");
  CHECK_THAT(resumed.err, ContainsSubstring("had older manifests alone; the hosts kept those of 1 "
                                            "checkpoint"));
  CHECK_THAT(resumed.err, ContainsSubstring("goes on from the checkpoint of step 8"));
  CHECK(all.slices("beta", 8).filename() == slices);
}

TEST_CASE("A trainer whose newest manifest was altered gets it from the hosts, if they have it",
          "[untimed]") {
  const disks all;
  run_to_8(all);
  const auto manifest = all.checkpoints() / "step-000008" / "manifest.json";
  flip_a_bit(manifest);
  const auto resumed = resume(all, "latest");
  CHECK_THAT(resumed.err, ContainsSubstring("had a manifest that cannot be read; the hosts kept "
                                            "those of 1 checkpoint"));
  CHECK_THAT(resumed.err, ContainsSubstring("goes on from the checkpoint of step 8"));
  for (const std::string host : {"alpha", "beta"})
    flip_a_bit(all.slices(host, 12) / "manifest.json");
  flip_a_bit(all.checkpoints() / "step-000012" / "manifest.json");
  const auto refused = run_program(all.run({"--resume", "latest"}, 16));
  CHECK(refused.code == 2);
  CHECK_THAT(refused.last_line(), ContainsSubstring("; the one of step 8 is whole: --resume 8"));
}

TEST_CASE("Old slices go with their checkpoints, on all hosts", "[untimed]") {
  const disks all;
  const auto outcome = run_program(all.run({"--checkpoint-keep", "1"}));
  REQUIRE(outcome.code == 0);
  CHECK(names_in(all.checkpoints()) == name_set{"step-000012"});
  for (const std::string host : {"alpha", "beta"}) {
    CHECK(all.kept_by(host) == name_set{all.slices(host, 12).filename().string()});
    CHECK(names_in(all.slices(host, 12)) == all_files);
  }
}

TEST_CASE(
    "A run that lost its only checkpoint and has pruned what it began from starts from the "
    "beginning",
    "[untimed]") {
  const disks all;
  const auto outcome = lose_all_behind_12(all, "auto");
  REQUIRE(outcome.code == 0);
  CHECK_THAT(outcome.err,
             ContainsSubstring("the run cannot go back to its checkpoint of step 12: "));
  CHECK_THAT(outcome.err, ContainsSubstring("the checkpoint that the run began from is gone: "));
  CHECK_THAT(outcome.err, ContainsSubstring(": the run starts from the beginning"));
  check_same_weights(undisturbed({}, 20), all.file("weights"));
  for (const std::string host : {"alpha", "beta"})
    CHECK(all.kept_by(host) == name_set{all.slices(host, 20).filename().string()});
}

TEST_CASE("A run that may not start from the beginning ends where nothing is left to go back to",
          "[untimed]") {
  const disks all;
  const auto outcome = lose_all_behind_12(all, "latest");
  CHECK(outcome.code == 1);
  CHECK_THAT(outcome.last_line(),
             ContainsSubstring("the checkpoint that the run began from is gone: "));
  CHECK_THAT(outcome.last_line(),
             ContainsSubstring("; --resume auto continues such a run from an older one"));
}

TEST_CASE("A stage that is lost while its run looks for a checkpoint on the hosts is replaced too",
          "[untimed]") {
  const disks all;
  bool lost = false, again = false;
  const auto lose = [&](pid_t trainer, std::string_view line) {
    if (!std::exchange(lost, lost || line.find("step 6/") == 0) && lost &&
        wait_until_there(all.checkpoints() / "step-000004"))
      for (const auto* const stage : {"stage-0", "stage-1"}) kill_stage(trainer, stage);
    const bool looks = line.find("looks for its checkpoint of step 4") != std::string_view::npos;
    if (!std::exchange(again, again || looks) && again) kill_stage(trainer, "stage-1.2");
  };
  const auto outcome = run_program(
      all.run(with(recovering_over_tcp, {"--save", all.file("weights").string()})), lose);
  REQUIRE(outcome.code == 0);
  CHECK(again);
  CHECK_THAT(outcome.err, ContainsSubstring("stage-1.3"));
  check_same_weights(undisturbed(), all.file("weights"));
}

TEST_CASE("A disk with no room for the next host's files is warned of, and they have one copy",
          "[untimed]") {
  const disks all;
  const small_disk alpha(all.of("alpha"), "size=60m");
  if (!alpha.made()) SKIP("no disk can be mounted: " + alpha.reason());
  const auto outcome = run_program(all.large_run({}, 4));
  REQUIRE(outcome.code == 0);
  CHECK_THAT(outcome.err, ContainsSubstring("the checkpoint of step 4 has no copy of "
                                            "state.stage-1.safetensors on alpha: "));
  CHECK_THAT(outcome.err, ContainsSubstring("No space left on device"));
  CHECK(names_in(all.slices("beta", 4)) == all_files);
  for (const auto* name : {"manifest.json", "weights.stage-0.safetensors"})
    CHECK(names_in(all.slices("alpha", 4)).contains(name));
  CHECK_FALSE(names_in(all.slices("alpha", 4)).contains("state.stage-1.safetensors"));
  const auto verified = command({"verify", all.checkpoints().string()});
  CHECK_THAT(verified.out,
             ContainsSubstring("state.stage-1.safetensors is not on this host, but on beta\n"));
  const auto resumed =
      run_program(all.large_run({"--resume", "latest", "--checkpoint-keep", "1"}, 6));
  CHECK(resumed.code == 0);
}

TEST_CASE("A host's disk that is too small is warned of at the start, and training goes on without",
          "[untimed]") {
  const disks all;
  const small_disk alpha(all.of("alpha"), "size=2m");
  if (!alpha.made()) SKIP("no disk can be mounted: " + alpha.reason());
  const auto outcome = run_program(all.large_run({}, 4));
  CHECK(outcome.code == 0);
  const auto warned = outcome.err.find("warning: checkpoint.storage: alpha has ");
  REQUIRE(warned != std::string::npos);
  CHECK(warned < outcome.err.find("step 1/"));
  // Those of its own stage and of the next host's.
  CHECK_THAT(outcome.err,
             ContainsSubstring(" MiB left, and the weights alone of one checkpoint need 42 MiB "
                               "there\n") &&
                 !ContainsSubstring("checkpoint.storage: beta has "));
  CHECK_THAT(outcome.err, ContainsSubstring("warning: no checkpoint of step 4: "));
}

TEST_CASE("A stage that is lost is replaced, and goes on to keep its slices on its host's disk") {
  const disks all;
  const auto expected = undisturbed();
  const auto outcome =
      run_program(all.run({"--on-fault", "recover", "--save", all.file("weights").string()}),
                  at_line("step-000004 in ", [](pid_t trainer) {
                    ::kill(children_of(children_of(trainer).back()).back(), SIGKILL);
                  }));
  REQUIRE(outcome.code == 0);
  CHECK_THAT(outcome.err, ContainsSubstring("it is replaced"));
  check_same_weights(expected, all.file("weights"));
  for (const std::string host : {"alpha", "beta"})
    CHECK(names_in(all.slices(host, 12)) == all_files);
}

TEST_CASE("A run waits for the processes of another one to end that still have a host's folder",
          "[untimed]") {
  const disks all;
  auto other = engine::slice_folder::open(all.of("beta") / "slices", "another");
  REQUIRE(other);
  REQUIRE(*other);
  const auto outcome = run_program(all.run({}, 4), [&](pid_t, std::string_view line) {
    if (line.find("waiting for its processes to end") != std::string_view::npos) other->reset();
  });
  REQUIRE(outcome.code == 0);
  CHECK_FALSE(*other);
  CHECK(names_in(all.slices("beta", 4)) == all_files);
  other = engine::slice_folder::open(all.of("beta") / "slices", "another");
  REQUIRE(other);
  REQUIRE(*other);
  const auto refused = run_program(all.run({}, 4));
  CHECK(refused.code == 2);
  CHECK_THAT(refused.last_line(),
             ContainsSubstring("beta: " + all.of("beta").string() +
                               "/slices is where another run keeps its slices just now"));
}

TEST_CASE("A disk that could not be used when its stage was replaced has later checkpoints again") {
  const disks all;
  const auto slices = all.of("beta") / "slices";
  const auto outcome = run_program(all.run({"--on-fault", "recover"}, 24),
                                   [&](pid_t trainer, std::string_view line) {
                                     const auto says = [&](const char* text) {
                                       return line.find(text) != std::string_view::npos;
                                     };
                                     if (says("step-000004 in ")) {
                                       fs::rename(slices, all.of("beta") / "before");
                                       write_text(slices, "no folder");
                                       kill_stage(trainer, "stage-1");
                                     }
                                     if (says("has no folder for its slices")) fs::remove(slices);
                                   });
  REQUIRE(outcome.code == 0);
  CHECK_THAT(outcome.err, ContainsSubstring("checkpoint.storage: beta: "));
  CHECK_THAT(outcome.err, ContainsSubstring("a stage's host has no folder for its slices"));
  CHECK(names_in(all.slices("beta", 24)) == all_files);
}

TEST_CASE("A disk that cannot be used is refused by its host, and one folder of all is warned of",
          "[untimed]") {
  const disks all;
  write_text(all.of("beta"), "no folder");
  const auto refused = run_program(all.run({}));
  CHECK(refused.code == 2);
  CHECK_THAT(refused.last_line(),
             ContainsSubstring("checkpoint.storage: beta: " + all.of("beta").string() +
                               "/slices: no folder can be made there: "));
  const auto one = run_program(two_stages(
      {"--checkpoint-storage", "local", "--checkpoint-dir", all.checkpoints().string()}, 2, 1));
  CHECK(one.code == 0);
  CHECK_THAT(one.err, ContainsSubstring("there is no second copy"));
  CHECK(names_in(all.checkpoints()) == name_set{"slices", "step-000002"});
  const auto nowhere = run_program(two_stages({"--checkpoint-storage", "local"}));
  CHECK(nowhere.code == 2);
  CHECK_THAT(nowhere.last_line(), ContainsSubstring("needs a folder for the checkpoints"));
}
