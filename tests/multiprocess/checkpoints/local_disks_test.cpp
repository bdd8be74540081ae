// Checkpoints on the hosts' own disks: which host keeps what, how a run goes on when a disk is
// lost, and what is refused. Two agents of this machine are the hosts, each with a folder of its
// own.

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <filesystem>
#include <set>
#include <string>

#include "cluster/checkpoints/checkpoint_folder.hpp"
#include "tests/multiprocess/checkpoints/checkpoint_run.hpp"

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

  /// A run of two stages with a checkpoint every fourth of twelve steps.
  [[nodiscard]] words run(const words& more) const {
    return two_stages(with({"--config", config().string(), "--checkpoint-dir",
                            checkpoints().string(), "--checkpoint-every", "4"},
                           more));
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
  scratch_folder folder_;
};

/// What no fault has touched.
fs::path undisturbed(const disks& all) {
  const auto file = all.file("whole");
  REQUIRE(run_program(two_stages({"--save", file.string()})).code == 0);
  return file;
}

/// A run that is killed when its checkpoint of step 8 is there.
void run_to_8(const disks& all) {
  const auto killed = run_program(all.run({}), at_checkpoint("step-000008", SIGKILL));
  INFO(killed.err);
  REQUIRE(killed.signal == SIGKILL);
}

program_outcome command(const words& more) {
  return run_other(TROUPE_COMMAND, with({"checkpoint"}, more));
}

}  // namespace

TEST_CASE("Each host keeps its stages' slices and the next host's, and a lost disk loses nothing") {
  const disks all;
  const auto expected = undisturbed(all);
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
  const auto resumed =
      run_program(all.run({"--resume", "latest", "--save", all.file("resumed").string()}));
  INFO(resumed.err);
  REQUIRE(resumed.code == 0);
  CHECK_THAT(resumed.err, ContainsSubstring("goes on from the checkpoint of step 8"));
  CHECK_THAT(resumed.err, ContainsSubstring("beta no longer has 4 files of the checkpoint of step "
                                            "8 ("));
  CHECK_THAT(resumed.err, ContainsSubstring("; alpha has a copy"));
  check_same_weights(expected, all.file("resumed"));
  CHECK(names_in(all.slices("beta", 12)) == all_files);
}

TEST_CASE("A run of other stages and hosts goes on from slices that hosts have left") {
  const disks all;
  const auto expected = undisturbed(all);
  run_to_8(all);
  fs::remove_all(all.of("alpha"));
  const disks more({"alpha", "beta", "gamma"});
  fs::copy(all.of("beta"), more.of("beta"), fs::copy_options::recursive);
  fs::copy(all.checkpoints(), more.checkpoints(), fs::copy_options::recursive);
  const auto resumed = run_program(
      with(training({"--stages", "3", "--schedule", "interleaved-1f1b"}),
           {"--config", more.config().string(), "--checkpoint-dir", more.checkpoints().string(),
            "--resume", "latest", "--save", more.file("resumed").string()}));
  INFO(resumed.err);
  REQUIRE(resumed.code == 0);
  CHECK_THAT(resumed.err, ContainsSubstring("alpha no longer has 4 files"));
  CHECK_THAT(resumed.err, ContainsSubstring(" came from beta to gamma"));
  check_same_weights(expected, more.file("resumed"));
  // And one that has a single host, whose folder has all.
  const auto alone = all.of("beta");
  fs::copy(all.checkpoints() / "step-000008", alone / "step-000008", fs::copy_options::recursive);
  CHECK_THAT(command({"verify", alone.string()}).out, ContainsSubstring("whole, 4 files"));
  const auto exported = command({"export", alone.string(), all.file("exported").string()});
  CHECK(exported.code == 0);
  const auto again = run_program(
      training({"--stages", "4", "--schedule", "gpipe", "--checkpoint-dir", alone.string(),
                "--resume", "latest", "--save", all.file("again").string()}));
  INFO(again.err);
  REQUIRE(again.code == 0);
  check_same_weights(expected, all.file("again"));
  CHECK(names_in(alone / "step-000012").size() == 9);
}

TEST_CASE("A bit that is flipped on one host's disk is made up for by the other's copy") {
  const disks all;
  const auto expected = undisturbed(all);
  run_to_8(all);
  flip_a_bit(all.slices("alpha", 8) / "weights.stage-0.safetensors");
  fs::resize_file(all.slices("beta", 8) / "state.stage-1.safetensors", 100);
  const auto resumed =
      run_program(all.run({"--resume", "8", "--save", all.file("resumed").string()}));
  INFO(resumed.err);
  REQUIRE(resumed.code == 0);
  CHECK_THAT(resumed.err, ContainsSubstring("alpha no longer has 1 file of the checkpoint of step "
                                            "8 ("));
  CHECK_THAT(resumed.err, ContainsSubstring("has another checksum); beta has a copy"));
  CHECK_THAT(resumed.err, ContainsSubstring("has 100 bytes, and its checkpoint wrote"));
  check_same_weights(expected, all.file("resumed"));
}

TEST_CASE("A file that no host has any more is refused by its name and theirs") {
  const disks all;
  const auto expected = undisturbed(all);
  run_to_8(all);
  for (const std::string host : {"alpha", "beta"})
    fs::remove(all.slices(host, 8) / "weights.stage-1.safetensors");
  const auto refused = run_program(all.run({"--resume", "latest"}));
  CHECK(refused.code == 2);
  CHECK_THAT(refused.last_line(),
             ContainsSubstring("step-000008: weights.stage-1.safetensors was kept by beta and "
                               "alpha, and no host of this run has it; alpha: "));
  CHECK_THAT(refused.last_line(), ContainsSubstring("; the one of step 4 is whole: --resume 4"));
  const auto passed =
      run_program(all.run({"--resume", "auto", "--save", all.file("passed").string()}));
  INFO(passed.err);
  REQUIRE(passed.code == 0);
  CHECK_THAT(passed.err, ContainsSubstring("this checkpoint is passed over"));
  CHECK_THAT(passed.err, ContainsSubstring("goes on from the checkpoint of step 4"));
  check_same_weights(expected, all.file("passed"));
  for (const std::string host : {"alpha", "beta"}) fs::remove_all(all.of(host));
  const auto none = run_program(all.run({"--resume", "latest", "--steps", "16"}));
  CHECK(none.code == 2);
  CHECK_THAT(none.last_line(), ContainsSubstring("; there is no older one that is whole"));
}

TEST_CASE("A trainer that has lost its folder gets the manifests from the hosts") {
  const disks all;
  const auto expected = undisturbed(all);
  run_to_8(all);
  fs::remove_all(all.checkpoints());
  const auto resumed =
      run_program(all.run({"--resume", "latest", "--save", all.file("resumed").string()}));
  INFO(resumed.err);
  REQUIRE(resumed.code == 0);
  CHECK_THAT(resumed.err,
             ContainsSubstring("had no manifest; the hosts kept those of 2 checkpoints"));
  CHECK_THAT(resumed.err, ContainsSubstring("goes on from the checkpoint of step 8"));
  check_same_weights(expected, all.file("resumed"));
  fs::remove_all(all.checkpoints());
  const auto complete = run_program(all.run({"--resume", "auto"}));
  INFO(complete.err);
  CHECK(complete.code == 0);
  CHECK_THAT(complete.err, ContainsSubstring("nothing is left to do"));
}

TEST_CASE("Old slices go with their checkpoints, on all hosts") {
  const disks all;
  const auto outcome = run_program(all.run({"--checkpoint-keep", "1"}));
  INFO(outcome.err);
  REQUIRE(outcome.code == 0);
  CHECK(names_in(all.checkpoints()) == name_set{"step-000012"});
  for (const std::string host : {"alpha", "beta"}) {
    CHECK(all.kept_by(host) == name_set{all.slices(host, 12).filename().string()});
    CHECK(names_in(all.slices(host, 12)) == all_files);
  }
}

TEST_CASE("A stage that is lost is replaced, and goes on to keep its slices on its host's disk") {
  const disks all;
  const auto expected = undisturbed(all);
  const auto outcome =
      run_program(all.run({"--on-fault", "recover", "--save", all.file("weights").string()}),
                  at_line("step-000004 in ", [](pid_t trainer) {
                    ::kill(children_of(children_of(trainer).back()).back(), SIGKILL);
                  }));
  INFO(outcome.err);
  REQUIRE(outcome.code == 0);
  CHECK_THAT(outcome.err, ContainsSubstring("it is replaced"));
  check_same_weights(expected, all.file("weights"));
  for (const std::string host : {"alpha", "beta"})
    CHECK(names_in(all.slices(host, 12)) == all_files);
}

TEST_CASE("A disk that cannot be used is refused by its host, and one folder of all is warned of") {
  const disks all;
  write_text(all.of("beta"), "no folder");
  const auto refused = run_program(all.run({}));
  CHECK(refused.code == 2);
  CHECK_THAT(refused.last_line(),
             ContainsSubstring("checkpoint.storage: beta: " + all.of("beta").string() +
                               "/slices: no folder can be made there: "));
  const auto one = run_program(two_stages(
      {"--checkpoint-storage", "local", "--checkpoint-dir", all.checkpoints().string()}, 2, 1));
  INFO(one.err);
  CHECK(one.code == 0);
  CHECK_THAT(one.err, ContainsSubstring("there is no second copy"));
  CHECK(names_in(all.checkpoints()) == name_set{"slices", "step-000002"});
  const auto nowhere = run_program(two_stages({"--checkpoint-storage", "local"}));
  CHECK(nowhere.code == 2);
  CHECK_THAT(nowhere.last_line(), ContainsSubstring("needs a folder for the checkpoints"));
}
