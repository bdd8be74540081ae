// What a checkpoint's folder holds, how it is checked, and what is found in one that is not as it
// was written.

#include <ATen/ops/_neg_view.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cluster/checkpoints/checkpoint_check.hpp"
#include "cluster/checkpoints/checkpoint_files.hpp"
#include "cluster/checkpoints/checkpoint_folder.hpp"
#include "cluster/checkpoints/weights_digest.hpp"
#include "cluster/config/trainer_config.hpp"
#include "engine/slices/summed_file.hpp"
#include "engine/state/atomic_file.hpp"
#include "engine/state/safetensors.hpp"
#include "engine/state/tensor_reader.hpp"
#include "tests/bytes_of.hpp"
#include "tests/refusal.hpp"
#include "tests/scratch_folder.hpp"
#include "tests/written_checkpoint.hpp"

namespace {

namespace fs = std::filesystem;
using namespace troupe;
using namespace troupe::cluster;
using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::EndsWith;
using Catch::Matchers::StartsWith;
using engine::named_tensor;
using tests::bytes_of;
using tests::scratch_folder;
using contents = checkpoint_manifest::contents;

const std::map<std::string, std::string> settings{{"model.name", "net"}};

std::vector<named_tensor> some_weights() {
  return {{"first.weight", at::arange(6, at::kFloat).view({2, 3})},
          {"first.count", at::full({}, 7, at::kLong)},
          {"second.none", at::empty({0, 4}, at::kFloat)},
          {"second.mask", at::zeros({3}, at::kBool)}};
}

/// The weights of a network in two stages, and the state of a parameter of the first.
fs::path write(const fs::path& folder, std::uint64_t step) {
  const auto all = some_weights();
  return tests::write_checkpoint(
      folder, step, settings,
      {{{all[0], all[1]}, {{"optimizer.slot.first.weight", at::full({2, 3}, 0.5)}}},
       {{all[2], all[3]}}});
}

/// The same as older versions wrote it.
fs::path write_older(const fs::path& folder, std::uint64_t step) {
  return tests::write_two_files(
      folder, step, settings,
      {some_weights(), {{"optimizer.slot.first.weight", at::full({2, 3}, 0.5)}}});
}

void put(const fs::path& file, const std::string& bytes) {
  std::ofstream(file, std::ios::binary) << bytes;
}

std::vector<checkpoint_fault> faults_in(const fs::path& folder, check_depth depth) {
  const auto manifest = read_manifest(folder / checkpoint_folder::manifest_name);
  REQUIRE(manifest);
  return find_faults(folder, *manifest, depth);
}

/// As a Troupe without checksums of tensors wrote it.
void make_older(const fs::path& checkpoint) {
  auto manifest = nlohmann::json::parse(bytes_of(checkpoint / "manifest.json"));
  for (auto& [name, file] : manifest.at("files").items()) file.erase("tensors");
  manifest.erase("checksum");
  put(checkpoint / "manifest.json", manifest.dump());
}

}  // namespace

TEST_CASE("files that hosts keep are checked as far as they are on this one") {
  const scratch_folder folder;
  const auto checkpoint = write(folder.path(), 8);
  auto manifest = read_manifest(checkpoint / checkpoint_folder::manifest_name).value();
  manifest.slices = "step-000008-ab";
  for (auto& [name, file] : manifest.files) file.hosts = {"alpha", "beta"};
  put(checkpoint / checkpoint_folder::manifest_name, to_text(manifest));
  const auto kept = folder / "slices" / manifest.slices;
  fs::create_directories(kept);
  const std::string moved = "weights.stage-0.safetensors", gone = "weights.stage-1.safetensors";
  fs::rename(checkpoint / moved, kept / moved);
  fs::remove(checkpoint / gone);
  CHECK(files_elsewhere(checkpoint, manifest) == std::vector{gone});
  CHECK(file_of(checkpoint, manifest, moved) == kept / moved);
  CHECK(file_of(checkpoint, manifest, "state.stage-0.safetensors") ==
        checkpoint / "state.stage-0.safetensors");
  CHECK(faults_in(checkpoint, check_depth::values).empty());
  CHECK(read_whole(checkpoint));
  CHECK(checkpoint_folder(folder.path()).slices().value() == std::vector{manifest.slices});
  fs::resize_file(kept / moved, 20);
  const auto faults = faults_in(checkpoint, check_depth::lengths);
  REQUIRE(faults.size() == 1);
  CHECK(faults.front().file == kept / moved);
  CHECK(read_whole(checkpoint));  // the hosts alone know
}

TEST_CASE(
    "a checkpoint under another step's name is refused, and one under a name of yours is not") {
  const scratch_folder folder;
  const auto checkpoint = write(folder.path(), 4);
  const auto other = folder.path() / "step-000030", own = folder.path() / "the-good-one";
  std::filesystem::rename(checkpoint, other);
  for (const auto& path : {other, other / ""}) {
    const auto read = error_of(read_whole(path));
    CHECK_THAT(read.text, ContainsSubstring("manifest.json is of step 4, and not of the"));
  }
  for (const auto depth : {check_depth::lengths, check_depth::values}) {
    const auto faults = faults_in(other, depth);
    REQUIRE(faults.size() == 1);
    CHECK(faults.front().text() == read_whole(other).error().text);
  }
  std::filesystem::rename(other, own);
  CHECK(read_whole(own));
  CHECK(faults_in(own, check_depth::values).empty());
  std::filesystem::create_directory_symlink(own, other);
  CHECK(faults_in(other, check_depth::values).size() == 1);
}

TEST_CASE("one process at a time writes checkpoints into a folder") {
  const scratch_folder folder;
  const checkpoint_folder all(folder.path());
  {
    const auto first = all.prepare();
    REQUIRE(first);
    const auto second = error_of(all.prepare());
    CHECK_THAT(second.text, ContainsSubstring("another run writes its checkpoints"));
  }
  CHECK(all.prepare());
}

TEST_CASE("what a run left that was killed while it wrote goes with the next run of its folder") {
  const scratch_folder folder;
  const pid_t child = ::fork();
  if (child == 0) {
    const auto trial = engine::atomic_file::create(folder / ".writing-trial");
    ::raise(trial ? SIGKILL : SIGTERM);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  REQUIRE((WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL));
  REQUIRE_FALSE(fs::is_empty(folder.path()));
  REQUIRE(checkpoint_folder(folder.path()).prepare());
  CHECK(fs::is_empty(folder.path()));
}

TEST_CASE("a bit that is flipped anywhere in a checkpoint is found, in a tensor by its name") {
  const scratch_folder folder;
  const auto checkpoint = write(folder.path(), 4);
  REQUIRE(faults_in(checkpoint, check_depth::values).empty());
  std::size_t named = 0;
  for (const std::string name : {"weights.stage-0.safetensors", "weights.stage-1.safetensors",
                                 "state.stage-0.safetensors"}) {
    const auto file = checkpoint / name;
    const auto whole = bytes_of(file);
    const auto reader = engine::tensor_reader::open(file);
    REQUIRE(reader);
    REQUIRE_FALSE(whole.empty());
    for (std::size_t at = 0; at < whole.size(); ++at) {
      INFO(name << ", byte " << at);
      auto altered = whole;
      altered[at] = static_cast<char>(altered[at] ^ (1 << (at % 8)));
      put(file, altered);
      const auto faults = faults_in(checkpoint, check_depth::checksums);
      REQUIRE(faults.size() == 1);
      CHECK(faults.front().file == file);
      CHECK_THAT(faults.front().text(), StartsWith(file.string() + " is not as its checkpoint"));
      CHECK(faults_in(checkpoint, check_depth::lengths).empty());
      if (!faults.front().tensor.empty()) {
        CHECK((*reader)->find(faults.front().tensor) != nullptr);
        CHECK_THAT(faults.front().what, ContainsSubstring('"' + faults.front().tensor + '"'));
        ++named;
      }
      CHECK_FALSE(read_whole(checkpoint));
    }
    put(file, whole);
  }
  CHECK(named == (24 + 8) + 3 + 24);  // all bytes of all tensors
  CHECK(read_whole(checkpoint));
}

TEST_CASE("a checkpoint of formats 2 and 4 is read, and a flipped bit in it is found") {
  struct checkpoint_sums {
    const char *format, *header, *tensor, *manifest;
  };
  // By other programs: Python's hashlib.blake2b, and XXH3_128bits.
  const auto sums = GENERATE(
      checkpoint_sums{"2", "e361ce65f3c7cae3ee8a8f96e52f6b2fc16c842fa7e4057ac358143b05f5687f",
                      "42f796cded228dc080ef1964ee5d73c3",
                      "72ae0c931c8c3347e2dabe0a49e78b4123f447fa2f06c762236eb0ee92b83e86"},
      checkpoint_sums{"4", "aa19e2ae00b28c20b455f45dcac1438d", "4533ce61c4655ba3c3e077b25dd1d769",
                      "73bc2ba83e6c5b8b89047216c5ce0468"});
  INFO("format " << sums.format);
  const scratch_folder folder;
  const auto checkpoint = folder / "step-000004";
  fs::create_directory(checkpoint);
  put(checkpoint / "manifest.json",
      std::string(R"({"troupe_checkpoint":)") + sums.format +
          R"(,"step":4,"settings":{"model.name":"net"},"weights":["a"],"files":{)" +
          R"("weights.stage-0.safetensors":{"bytes":72,"holds":"weights","header":")" +
          sums.header + R"(","tensors":{"a":")" + sums.tensor + R"("}}},"checksum":")" +
          sums.manifest + "\"}");
  std::string header = R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
  header.resize(56, ' ');
  const auto whole =
      std::string("8\0\0\0\0\0\0\0", 8) + header + std::string("\0\0\x80?\0\0\0@", 8);
  const auto file = checkpoint / "weights.stage-0.safetensors";
  put(file, whole);
  REQUIRE(faults_in(checkpoint, check_depth::values).empty());
  CHECK(checkpoint_folder(folder.path()).newest().value().found->manifest.step == 4);
  for (std::size_t at = 0; at < whole.size(); ++at) {
    INFO(at);
    auto altered = whole;
    altered[at] = static_cast<char>(altered[at] ^ 1);
    put(file, altered);
    const auto faults = faults_in(checkpoint, check_depth::checksums);
    REQUIRE(faults.size() == 1);
    CHECK(faults.front().tensor == (at < 8 + header.size() ? "" : "a"));
  }
}

TEST_CASE("a checkpoint of two files is checked by its files, and by tensors where it has them") {
  const scratch_folder folder;
  const auto checkpoint = write_older(folder.path(), 4);
  REQUIRE(read_whole(checkpoint));
  const auto file = checkpoint / "weights.safetensors";
  auto altered = bytes_of(file);
  altered.back() = static_cast<char>(altered.back() ^ 1);
  put(file, altered);
  const auto known = faults_in(checkpoint, check_depth::checksums);
  REQUIRE(known.size() == 1);
  CHECK(known.front().tensor == "second.mask");
  make_older(checkpoint);
  const auto faults = faults_in(checkpoint, check_depth::checksums);
  REQUIRE(faults.size() == 1);
  CHECK(faults.front().tensor.empty());
  CHECK_THAT(faults.front().text(), ContainsSubstring("its checksum differs"));
}

TEST_CASE("a file that is cut at any byte is refused, by the tensor where its header is whole") {
  const scratch_folder folder;
  const auto checkpoint = write(folder.path(), 4);
  const auto file = checkpoint / "weights.stage-1.safetensors";
  const auto whole = bytes_of(file);
  for (std::size_t length = 0; length < whole.size(); ++length) {
    INFO(length);
    put(file, whole.substr(0, length));
    const auto faults = faults_in(checkpoint, check_depth::lengths);
    REQUIRE(faults.size() == 1);
    CHECK_THAT(faults.front().what, StartsWith("has " + std::to_string(length) + " bytes, and"));
  }
  put(file, whole.substr(0, whole.size() - 1));
  CHECK(faults_in(checkpoint, check_depth::lengths).front().tensor == "second.mask");
  put(file, whole + "x");
  CHECK(faults_in(checkpoint, check_depth::lengths).size() == 1);
  fs::remove(file);
  CHECK_THAT(
      faults_in(checkpoint, check_depth::lengths).front().what,
      StartsWith("cannot be read: ") && EndsWith("; it held tensor \"second.mask\" and 1 more"));
}

TEST_CASE("values that are not finite are found by their tensors, where values are looked at") {
  const scratch_folder folder;
  const auto infinite = std::numeric_limits<float>::infinity();
  const auto checkpoint = tests::write_checkpoint(
      folder.path(), 4, settings,
      {{{{"fine", at::zeros({2})},
         {"large", at::full({2}, infinite)},
         {"none", at::full({2}, std::numeric_limits<float>::quiet_NaN())}}}});
  CHECK(faults_in(checkpoint, check_depth::checksums).empty());
  const auto faults = faults_in(checkpoint, check_depth::values);
  REQUIRE(faults.size() == 2);
  CHECK(faults[0].what == "holds infinity in tensor \"large\"");
  CHECK(faults[1].what == "holds NaN in tensor \"none\"");
}

TEST_CASE("the newest whole checkpoint is found behind those that are torn") {
  const scratch_folder folder;
  const checkpoint_folder all(folder.path());
  CHECK_FALSE(all.newest().value().found);
  write(folder.path(), 2);
  const auto third = write(folder.path(), 3);
  const auto fourth = write(folder.path(), 4);
  CHECK(all.newest().value().found->manifest.step == 4);
  fs::remove(fourth / "weights.stage-1.safetensors");
  put(third / "manifest.json", "{");
  const auto looked = all.newest();
  REQUIRE(looked);
  REQUIRE(looked->found);
  CHECK(looked->found->manifest.step == 2);
  REQUIRE(looked->passed_over.size() == 2);
  CHECK_THAT(looked->passed_over[0], StartsWith((fourth / "weights.stage-1.safetensors").string()));
  CHECK_THAT(looked->passed_over[1], StartsWith((third / "manifest.json").string()));
  const auto latest = error_of(all.latest());
  CHECK_THAT(latest.text, ContainsSubstring("the one of step 2 is whole: --resume 2"));
  CHECK(looked->of_another_troupe.empty());
  put(third / "manifest.json", R"({"troupe_checkpoint":5})");
  CHECK_THAT(all.newest().value().of_another_troupe,
             StartsWith((third / "manifest.json").string() + " is of another Troupe"));
}

TEST_CASE("a checkpoint that is not finished leaves nothing, whatever is missing of it") {
  const scratch_folder folder;
  const checkpoint_folder all(folder.path());
  const auto begin = [&] {
    const auto begun = all.begin(4);
    REQUIRE(begun);
    CHECK(begun->folder.filename().string().starts_with(".writing-step-000004-"));
    return *begun;
  };
  const auto first = begin(), second = begin();
  CHECK(first.folder != second.folder);
  CHECK_FALSE(fs::exists(first.folder));  // goes with the next
  const checkpoint_manifest manifest{
      .step = 4,
      .settings = {},
      .files = {{"weights.stage-0.safetensors", {contents::weights, {10, "h", {{"a", "0"}}}}}},
      .weights = {"a"}};
  const auto absent = error_of(all.finish(second, manifest));
  CHECK(absent.code == errc::io_failed);
  CHECK_THAT(absent.text, ContainsSubstring("weights.stage-0.safetensors cannot be read"));
  CHECK(fs::is_empty(folder.path()));
  const auto third = begin();
  put(third.folder / "weights.stage-0.safetensors", "short");
  const auto cut = error_of(all.finish(third, manifest));
  CHECK_THAT(cut.text, ContainsSubstring("has 5 bytes, and its checkpoint wrote 10"));
  CHECK(fs::is_empty(folder.path()));
  checkpoint_folder::drop(begin());
  CHECK(fs::is_empty(folder.path()));
}

TEST_CASE("what is saved with its checksums is what they are of, whichever layout it has") {
  const scratch_folder folder;
  const std::vector<named_tensor> tensors{
      {"turned", at::arange(12, at::kFloat).view({3, 4}).t()},
      {"none", at::empty({0, 3})},
      {"number", at::full({}, 3, at::kLong)},
      {"large", at::arange(700'000, at::kFloat).view({2, 350'000}).t()}};  // in several runs
  const auto sums = engine::save_summed(folder / "summed", engine::stream_of(tensors));
  REQUIRE(sums);
  REQUIRE(engine::save_safetensors(folder / "plain", tensors));
  CHECK(bytes_of(folder / "summed") == bytes_of(folder / "plain"));
  CHECK(sums->bytes == fs::file_size(folder / "plain"));
  const auto reader = engine::tensor_reader::open(folder / "plain");
  REQUIRE(reader);
  CHECK(sums->header == engine::header_sum_of(**reader, sums->by).value());
  REQUIRE(sums->tensors.size() == tensors.size());
  for (const auto& each : (*reader)->tensors())
    CHECK(sums->tensors.at(each.name) == engine::tensor_sum_of(**reader, each, sums->by).value());
}

TEST_CASE("files that are written side by side have the sums that each has alone") {
  const scratch_folder folder;
  const auto weights = engine::stream_of(std::vector<named_tensor>{{"w", at::arange(100'000)}});
  const auto state = engine::stream_of(std::vector<named_tensor>{{"s", at::ones({7})}});
  const auto both = engine::save_all_summed(folder.path(),
                                            {{"weights", weights}, {"state", state}, {"none", {}}});
  REQUIRE(both);
  CHECK(both->size() == 2);
  CHECK(both->at("weights") == engine::save_summed(folder / "again", weights).value());
  CHECK(both->at("state") == engine::save_summed(folder / "again", state).value());
  CHECK_FALSE(fs::exists(folder / "none"));
  const auto refused =
      engine::save_all_summed(folder / "nowhere", {{"weights", weights}, {"state", state}});
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code == errc::io_failed);
  CHECK_THAT(refused.error().text, ContainsSubstring("nowhere/state"));
}

TEST_CASE("a digest of weights is that of the values in the file, lazy negatives too") {
  const auto digest_of = [](const at::Tensor& run) {
    weights_digest digest;
    digest.add("weight", 0, run);
    return digest.value().item<std::int64_t>();
  };
  const auto weight = at::arange(5.0);
  CHECK(digest_of(at::_neg_view(weight.neg())) == digest_of(weight));
  CHECK(digest_of(at::_neg_view(weight)) != digest_of(weight));
}

TEST_CASE("old checkpoints are removed, and those of later steps are not counted") {
  const scratch_folder folder;
  const checkpoint_folder all(folder.path());
  for (const std::uint64_t step : {2, 4, 6, 8, 10}) write(folder.path(), step);
  using effect = cluster::checkpoint_write_core::effect;
  const auto remove_old = [&](std::uint64_t step) {
    checkpoint_folder::begun what{{}, step};
    for (const auto each : {effect::unlist_old, effect::sync_old, effect::remove_old})
      REQUIRE(all.perform(each, what, {}, 2));
  };
  remove_old(6);  // a run that went back to 4 has written 6
  CHECK(all.steps().value() == std::vector<std::uint64_t>{10, 8, 6, 4});
  CHECK(all.entries().value().size() == 4);  // nothing of the others
  remove_old(10);
  CHECK(all.steps().value() == std::vector<std::uint64_t>{10, 8});
}

TEST_CASE("a folder that cannot be read is no folder without checkpoints") {
  const scratch_folder folder;
  CHECK(checkpoint_folder(folder / "absent").steps().value().empty());
  CHECK_FALSE(checkpoint_folder(folder / "absent").entries());
  put(folder / "file", "");
  for (const auto& path : {folder / "file", folder / "file" / "below"}) {
    INFO(path);
    const auto steps = error_of(checkpoint_folder(path).steps());
    CHECK(steps.code == errc::bad_data);
    CHECK_THAT(steps.text, StartsWith(path.string() + " cannot be read: "));
    CHECK_FALSE(checkpoint_folder(path).newest());
    CHECK_FALSE(checkpoints_at(path));
    CHECK_FALSE(checkpoint_folder(path).prepare());
  }
}

TEST_CASE("a path means a checkpoint, or those in a folder") {
  const scratch_folder folder;
  const auto refused = [](const fs::path& path) { return error_of(checkpoints_at(path)).text; };
  CHECK_THAT(refused(folder.path()), ContainsSubstring("holds no checkpoint"));
  const auto tenth = write(folder.path(), 10);
  const auto second = write(folder.path(), 2);
  fs::create_directory(folder / ".writing-step-000012-0123456789abcdef");
  fs::create_directory(folder / "step-000011");
  CHECK(checkpoints_at(folder.path()).value() ==
        std::vector{second, tenth, folder / "step-000011"});
  CHECK(checkpoints_at(tenth).value() == std::vector{tenth});
  CHECK_THAT(refused(folder / "step-000011"), ContainsSubstring("it has no manifest.json"));
  const auto entries = checkpoint_folder(folder.path()).entries();
  REQUIRE(entries);
  REQUIRE(entries->size() == 4);
  CHECK(entries->back().half_written);
  CHECK(entries->back().step == 12);
}

TEST_CASE("a signal that asks for a checkpoint is one of two") {
  const auto number = [](const std::string& name) {
    return signal_of(checkpoint_config{.dir = {}, .every = {}, .resume = {}, .on_signal = name});
  };
  CHECK(number("").value() == 0);
  CHECK(number("SIGUSR1").value() == SIGUSR1);
  CHECK(number("USR2").value() == SIGUSR2);
  for (const auto* name : {"SIGTERM", "usr1", "10", "SIGUSR3"})
    CHECK_THAT(number(name).error().text, ContainsSubstring("take SIGUSR1 or SIGUSR2"));
}
