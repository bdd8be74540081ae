// `troupe checkpoint`: what it says of whole checkpoints and of those that are not, by file and
// tensor and with its exit code.

#include <ATen/ops/full.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <string>

#include "cluster/checkpoints/checkpoint_folder.hpp"
#include "engine/state/safetensors.hpp"
#include "engine/state/safetensors_header.hpp"
#include "tests/multiprocess/checkpoints/checkpoint_run.hpp"
#include "tests/written_checkpoint.hpp"

namespace {

namespace fs = std::filesystem;
using namespace troupe;
using namespace troupe::tests;
using Catch::Matchers::ContainsSubstring;
using nlohmann::json;

program_outcome troupe_checkpoint(const words& more) {
  return run_other(TROUPE_COMMAND, with({"checkpoint"}, more));
}

/// Where a tensor's bytes begin in a file.
std::uint64_t place_of(const fs::path& file, const std::string& tensor) {
  const auto bytes = bytes_of(file);
  const auto header = engine::parse_safetensors_header(std::as_bytes(std::span(bytes)));
  REQUIRE(header);
  for (const auto& each : header->tensors)
    if (each.name == tensor) return header->data_begin + each.begin;
  FAIL(tensor << " is not in " << file);
  return 0;
}

void flip_a_bit_at(const fs::path& file, std::uint64_t place) {
  auto bytes = bytes_of(file);
  REQUIRE(place < bytes.size());
  bytes[place] = static_cast<char>(bytes[place] ^ 16);
  std::ofstream(file, std::ios::binary) << bytes;
}

const checkpoint_settings settings{{"model.name", "net"}, {"optimizer.name", "adam"}};

written_slice first_slice(double value) {
  return {{{"fc.weight", at::full({8, 16}, value)}},
          {{"optimizer.exp_avg.fc.weight", at::full({8, 16}, 0.5)}}};
}

written_slice second_slice() {
  return {{{"fc.bias", at::full({8}, 2.)}}};
}

/// A small checkpoint of two stages, as a run writes it, of two weights and the state of one.
fs::path small_checkpoint(const fs::path& folder, std::uint64_t step, double value = 1) {
  return write_checkpoint(folder, step, settings, {first_slice(value), second_slice()});
}

/// The same in two files, as older versions wrote it.
fs::path older_checkpoint(const fs::path& folder, std::uint64_t step) {
  auto all = first_slice(1);
  all.weights.push_back(second_slice().weights.front());
  return write_two_files(folder, step, settings, all);
}

/// Whether what `inspect --json` says of a checkpoint's files fits these weights.
void check_described(const json& described, const std::vector<engine::named_tensor>& weights) {
  std::map<std::string, json> tensors;
  for (const auto& file : described.at("files")) {
    CHECK(file.at("header_xxh3_128").get<std::string>().size() == 32);
    if (file.at("holds") == "state") continue;
    CHECK(file.at("tensors").size() < weights.size());
    for (const auto& each : file.at("tensors")) tensors[each.at("name")] = each;
  }
  REQUIRE(tensors.size() == weights.size());
  for (const auto& [name, tensor] : weights) {
    INFO(name);
    const auto& found = tensors.at(name);
    CHECK(found.at("shape").get<std::vector<std::int64_t>>() == tensor.sizes().vec());
    CHECK(found.at("bytes") == tensor.nbytes());
    CHECK(found.at("xxh3_128").get<std::string>().size() == 32);
  }
}

/// Whether inspect and export, which do not read all that verify does, refuse it too.
struct refusals {
  bool inspected;
  bool exported;
};

struct fault {
  std::string file, tensor, what;
};

/// Of a file that is not there.
std::string absent(const std::string& tensor) {
  return "cannot be read: No such file or directory; it held tensor \"" + tensor + "\"\n";
}

/// What is said of a checkpoint with one fault, beside another one that has none.
void check_one_fault(const fs::path& bad, const fault& of, refusals others) {
  const auto one = troupe_checkpoint({"verify", bad});
  CHECK(one.code == 2);
  CHECK_THAT(one.out, ContainsSubstring(of.file + ' '));
  CHECK_THAT(one.out, ContainsSubstring(of.what));
  CHECK_THAT(one.err, ContainsSubstring("1 of 1 checkpoint cannot be resumed from"));
  const auto all = troupe_checkpoint({"verify", bad.parent_path(), "--json"});
  CHECK(all.code == 2);
  CHECK_THAT(all.err, ContainsSubstring("1 of 2 checkpoints"));
  const auto parsed = json::parse(all.out).at("checkpoints");
  REQUIRE(parsed.size() == 2);
  CHECK(parsed[0].at("whole") == true);
  CHECK(parsed[1].at("whole") == false);
  REQUIRE(parsed[1].at("faults").size() == 1);
  CHECK(parsed[1].at("faults")[0].at("file") == of.file);
  CHECK(parsed[1].at("faults")[0].at("tensor") == of.tensor);
  const auto inspected = troupe_checkpoint({"inspect", bad});
  CHECK((inspected.code == 2) == others.inspected);
  if (others.inspected) CHECK_THAT(inspected.err, ContainsSubstring(of.file + ' '));
  const auto out = bad.parent_path().parent_path() / "out";
  const auto exported = troupe_checkpoint({"export", bad, out});
  CHECK((exported.code == 2) == others.exported);
  CHECK(fs::exists(out) == !others.exported);
  fs::remove(out);
}

}  // namespace

TEST_CASE(
    "The checkpoints of a run are listed, shown, verified, and exported as --save writes them",
    "[untimed]") {
  const scratch_folder folder;
  const std::string checkpoints = folder / "checkpoints";
  const std::string saved = folder / "saved.safetensors";
  REQUIRE(run_program(
              two_stages(
                  {"--checkpoint-dir", checkpoints, "--checkpoint-every", "2", "--save", saved}, 4))
              .code == 0);
  const auto listed = troupe_checkpoint({"list", checkpoints, "--json"});
  REQUIRE(listed.code == 0);
  const auto rows = json::parse(listed.out).at("checkpoints");
  REQUIRE(rows.size() == 2);
  for (const auto& row : rows) {
    CHECK(row.at("state") == "whole");
    CHECK(row.at("bytes") > 8'000'000);
    CHECK(row.at("age_seconds") >= 0);
    CHECK(row.at("age_seconds") < 120);
  }
  CHECK(rows[0].at("step") == 2);
  CHECK(rows[1].at("step") == 4);

  const auto shown = troupe_checkpoint({"inspect", checkpoints});
  REQUIRE(shown.code == 0);
  for (const auto* text : {"step                   4\n", "model.name             small\n",
                           "optimizer.name         adam\n", "weights.stage-0.safetensors: ",
                           "weights.stage-1.safetensors: ", "state.stage-0.safetensors: ",
                           "state.stage-1.safetensors: ", "[64, 3, 7, 7]"})
    CHECK_THAT(shown.out, ContainsSubstring(text));
  const auto described =
      json::parse(troupe_checkpoint({"inspect", checkpoints + "/step-000002", "--json"}).out);
  CHECK(described.at("step") == 2);
  CHECK(described.at("config").at("optimizer.lr") == "0.01");
  CHECK(described.at("config").at("train.steps") == "4");
  CHECK_FALSE(described.at("config").contains("pipeline.replicas"));
  const auto weights = engine::load_safetensors(saved);
  REQUIRE(weights);
  check_described(described, *weights);

  const auto verified = troupe_checkpoint({"verify", checkpoints});
  CHECK(verified.code == 0);
  CHECK_THAT(verified.out, ContainsSubstring(checkpoints + "/step-000002: whole, 4 files"));
  CHECK_THAT(verified.out, ContainsSubstring(checkpoints + "/step-000004: whole, 4 files"));

  const auto exported = troupe_checkpoint({"export", checkpoints, folder / "exported"});
  REQUIRE(exported.code == 0);
  CHECK_THAT(exported.out, ContainsSubstring("the weights after step 4, 62 tensors"));
  CHECK(bytes_of(folder / "exported") == bytes_of(saved));

  // Of another model than the run's.
  auto words_of_other = two_stages({"--checkpoint-dir", checkpoints, "--resume", "auto"}, 6);
  std::ranges::replace(words_of_other, "small", "resnet18");
  const auto other = run_program(words_of_other);
  CHECK(other.code == 2);
  CHECK_THAT(other.last_line(), ContainsSubstring("model.name = small, and this one has resnet18"));
}

TEST_CASE("What is torn, half written or without a manifest is listed as such", "[untimed]") {
  const scratch_folder folder;
  small_checkpoint(folder.path(), 2);
  const auto cut = small_checkpoint(folder.path(), 4);
  fs::resize_file(cut / "weights.stage-0.safetensors", 400);
  const auto newer = small_checkpoint(folder.path(), 6);
  write_text(newer / "manifest.json", R"({"troupe_checkpoint": 5})");
  fs::create_directory(folder / "step-000008");
  fs::create_directory(folder / ".writing-step-000010");
  fs::create_directory_symlink("step-000002", folder / "step-000012");
  write_text(folder / "notes.txt", "not ours");
  const auto outcome = troupe_checkpoint({"list", folder.path(), "--json"});
  REQUIRE(outcome.code == 0);
  const auto rows = json::parse(outcome.out).at("checkpoints");
  REQUIRE(rows.size() == 6);
  const std::vector<std::string> states{"whole", "torn", "torn", "torn", "half written", "torn"};
  for (std::size_t i = 0; i < states.size(); ++i) {
    CHECK(rows[i].at("step") == 2 * (i + 1));
    CHECK(rows[i].at("state") == states[i]);
  }
  CHECK_THAT(rows[1].at("problem").get<std::string>(),
             ContainsSubstring("weights.stage-0.safetensors has 400 bytes"));
  CHECK_THAT(rows[2].at("problem").get<std::string>(), ContainsSubstring("format is number 5"));
  CHECK_THAT(rows[3].at("problem").get<std::string>(), ContainsSubstring("manifest.json"));
  CHECK_THAT(rows[5].at("problem").get<std::string>(), ContainsSubstring("is of step 2, and not"));
  const auto table = troupe_checkpoint({"list", folder.path()});
  CHECK(table.code == 0);
  CHECK_THAT(table.out,
             ContainsSubstring("torn: " + (cut / "weights.stage-0.safetensors").string()));
  CHECK_THAT(table.out, ContainsSubstring("half written"));
}

TEST_CASE("What is wrong with a checkpoint is said by its file and tensor, with exit code 2",
          "[untimed]") {
  const scratch_folder folder;
  small_checkpoint(folder / "kept", 2);
  const auto whole = small_checkpoint(folder / "whole", 4);
  const auto bad = folder / "kept" / "step-000004";
  const auto weights = bad / "weights.stage-0.safetensors";
  const auto state = bad / "state.stage-0.safetensors";
  const auto manifest = bad / "manifest.json";
  const auto harmed = [&](const std::function<void()>& harm) {
    fs::remove_all(bad);
    fs::copy(whole, bad, fs::copy_options::recursive);
    harm();
  };
  const auto found = [&](const std::string& file, const std::string& tensor,
                         const std::string& what, refusals others,
                         const std::function<void()>& harm) {
    INFO(file << ' ' << what);
    harmed(harm);
    check_one_fault(bad, {file, tensor, what}, others);
  };
  const std::string altered = "is not as its checkpoint wrote it: ";
  found(weights, "fc.weight", altered + "tensor \"fc.weight\" has another checksum", {false, true},
        [&] { flip_a_bit_at(weights, place_of(weights, "fc.weight") + 5); });
  found(state, "optimizer.exp_avg.fc.weight",
        altered + "tensor \"optimizer.exp_avg.fc.weight\" has another checksum", {false, false},
        [&] { flip_a_bit_at(state, place_of(state, "optimizer.exp_avg.fc.weight")); });
  found(weights, "", altered + "its header", {true, true}, [&] { flip_a_bit_at(weights, 9); });
  found(weights, "fc.weight", "has 300 bytes, and its checkpoint wrote ", {true, true},
        [&] { fs::resize_file(weights, 300); });
  found(state, "", absent("optimizer.exp_avg.fc.weight"), {true, false},
        [&] { fs::remove(state); });
  found(weights, "", absent("fc.weight"), {true, true}, [&] { fs::remove(weights); });
  found(bad / "weights.stage-1.safetensors", "", absent("fc.bias"), {true, true},
        [&] { fs::remove(bad / "weights.stage-1.safetensors"); });
  found(manifest, "", "its format is number 5", {true, true},
        [&] { write_text(manifest, R"({"troupe_checkpoint": 5})"); });
  found(manifest, "", "is of step 2, and not of the step that its folder is named after",
        {true, true}, [&] {
          fs::remove_all(bad);
          fs::copy(folder / "kept" / "step-000002", bad, fs::copy_options::recursive);
        });
  found(manifest, "", "is no manifest", {true, true}, [&] { fs::resize_file(manifest, 40); });
  found(weights, "fc.weight", "holds NaN in tensor \"fc.weight\"", {false, false}, [&] {
    fs::remove_all(bad);
    small_checkpoint(folder / "kept", 4, std::numeric_limits<double>::quiet_NaN());
  });
  harmed([&] {
    std::ifstream text(manifest);
    auto altered_manifest = json::parse(text);
    auto& files = altered_manifest.at("files");
    files["a\x1b[1m.safetensors"] = files.at("state.stage-0.safetensors");
    write_text(manifest, tests::sealed(altered_manifest));
  });
  const auto escaped = troupe_checkpoint({"verify", bad});
  CHECK(escaped.code == 2);
  CHECK_THAT(escaped.out, ContainsSubstring("a\\x1b[1m.safetensors cannot be read"));
  CHECK(escaped.out.find('\x1b') == std::string::npos);
}

TEST_CASE("A folder that is no checkpoint, or cannot be read, is refused by every verb",
          "[untimed]") {
  const scratch_folder folder;
  fs::create_directory(folder / "empty");
  fs::create_directory(folder / "step-000004");
  write_text(folder / "file", "");
  const auto refused = [&](const std::string& where, const std::string& what) {
    for (const std::string verb : {"list", "inspect", "verify", "export"}) {
      INFO(verb << ' ' << where);
      words line{verb, where};
      if (verb == "export") line.push_back(folder / "out");
      const auto outcome = troupe_checkpoint(line);
      CHECK(outcome.code == 2);
      CHECK(outcome.out.empty());
      CHECK_THAT(outcome.err, ContainsSubstring("troupe checkpoint: " + where));
      CHECK_THAT(outcome.err, ContainsSubstring(what));
    }
    CHECK_FALSE(fs::exists(folder / "out"));
  };
  refused(folder / "absent", "cannot be read: No such file or directory");
  refused(folder / "file", "cannot be read: Not a directory");
  refused(folder / "empty", "holds no checkpoint");
  const auto bare = troupe_checkpoint({"verify", folder / "step-000004"});
  CHECK(bare.code == 2);
  CHECK_THAT(bare.err, ContainsSubstring("is no checkpoint: it has no manifest.json"));
  const auto one = small_checkpoint(folder / "kept", 2);
  const auto listed = troupe_checkpoint({"list", one});
  CHECK(listed.code == 2);
  CHECK_THAT(listed.err, ContainsSubstring("is one checkpoint"));
  for (const words& line : {words{}, {"burn", folder / "kept"}, {"list"}, {"export", one}}) {
    const auto outcome = troupe_checkpoint(line);
    CHECK(outcome.code == 2);
    CHECK_FALSE(outcome.err.empty());
  }
}

TEST_CASE("A folder that another user may not read is no folder without checkpoints", "[untimed]") {
  if (::getuid() != 0) SKIP("needs root, to become somebody else");
  const scratch_folder folder;
  small_checkpoint(folder / "kept", 2);
  fs::permissions(folder.path(), fs::perms(0755));
  fs::permissions(folder / "kept", fs::perms(0700));
  const auto outcome =
      run_other("/usr/bin/setpriv", {"--reuid", "65534", "--regid", "65534", "--clear-groups",
                                     TROUPE_COMMAND, "checkpoint", "verify", folder / "kept"});
  CHECK(outcome.code == 2);
  CHECK_THAT(outcome.err, ContainsSubstring("cannot be read: Permission denied"));
}

TEST_CASE("An export replaces a regular file, and nothing else", "[untimed]") {
  const scratch_folder folder;
  const auto checkpoint = small_checkpoint(folder / "kept", 2);
  const auto refused = [&](const std::string& file, const std::string& what) {
    const auto outcome = troupe_checkpoint({"export", checkpoint, file});
    CHECK(outcome.code == 2);
    CHECK_THAT(outcome.err, ContainsSubstring(what));
  };
  fs::create_directory(folder / "directory");
  REQUIRE(::mkfifo((folder / "pipe").c_str(), 0600) == 0);
  refused(folder / "directory", "only a file is ever replaced");
  refused(folder / "pipe", "only a file is ever replaced");
  refused("/dev/null", "only a file is ever replaced");
  refused(folder / "absent" / "file", "No such file or directory");
  for (const auto* own :
       {"weights.stage-1.safetensors", "state.stage-0.safetensors", "manifest.json"})
    refused(checkpoint / own, "is a file of the checkpoint itself");
  CHECK(troupe_checkpoint({"verify", checkpoint}).code == 0);
  write_text(folder / "file", "of before");
  REQUIRE(troupe_checkpoint({"export", checkpoint, folder / "file"}).code == 0);
  REQUIRE(engine::save_safetensors(
      folder / "expected", std::vector{first_slice(1).weights[0], second_slice().weights[0]}));
  CHECK(bytes_of(folder / "file") == bytes_of(folder / "expected"));
}

TEST_CASE("PyTorch loads an export strictly", "[untimed]") {
  if (!fs::exists(TROUPE_PEERS))
    SKIP("the Python peers are not installed (./dev bench resnet --peers installs them)");
  const scratch_folder folder;
  const std::string kept = folder / "kept", exported = folder / "exported";
  REQUIRE(run_program(large_two_stages({"--checkpoint-dir", kept}, 2)).code == 0);
  REQUIRE(troupe_checkpoint({"export", kept, exported}).code == 0);
  const auto loaded =
      run_other(TROUPE_PEERS, {"-c",
                               "import sys, safetensors.torch, torchvision\n"
                               "weights = safetensors.torch.load_file(sys.argv[1])\n"
                               "model = torchvision.models.resnet18(num_classes=10)\n"
                               "print(model.load_state_dict(weights, strict=True))\n",
                               exported});
  CHECK(loaded.code == 0);
  CHECK_THAT(loaded.out, ContainsSubstring("All keys matched successfully"));
}

TEST_CASE("A checkpoint with the checksums of older versions is shown, verified and exported",
          "[untimed]") {
  const scratch_folder folder;
  const auto older = small_checkpoint(folder / "kept", 2);
  const auto weights = older / "weights.stage-0.safetensors";
  write_text(older / "manifest.json", older_manifest(older / "manifest.json", older));
  const auto listed = json::parse(troupe_checkpoint({"list", folder / "kept", "--json"}).out);
  CHECK(listed.at("checkpoints").at(0).at("state") == "whole");
  CHECK(troupe_checkpoint({"verify", older}).code == 0);
  CHECK(troupe_checkpoint({"export", older, folder / "exported"}).code == 0);
  const auto shown = json::parse(troupe_checkpoint({"inspect", older, "--json"}).out);
  REQUIRE(shown.at("files").size() == 3);
  for (const auto& file : shown.at("files")) {
    CHECK(file.at("header_blake2b").get<std::string>().size() == 64);
    CHECK(file.at("tensors").at(0).at("blake2b").get<std::string>().size() == 32);
  }
  flip_a_bit_at(weights, place_of(weights, "fc.weight"));
  const auto bad = troupe_checkpoint({"verify", older});
  CHECK(bad.code == 2);
  CHECK_THAT(bad.out, ContainsSubstring("tensor \"fc.weight\" has another checksum"));
  CHECK(troupe_checkpoint({"export", older, folder / "again"}).code == 2);
}

TEST_CASE("A checkpoint of two files is listed, verified and exported like one of slices",
          "[untimed]") {
  const scratch_folder folder;
  const auto older = older_checkpoint(folder / "kept", 2);
  small_checkpoint(folder / "kept", 4);
  CHECK(troupe_checkpoint({"verify", folder / "kept"}).code == 0);
  const auto rows =
      json::parse(troupe_checkpoint({"list", folder / "kept", "--json"}).out).at("checkpoints");
  REQUIRE(rows.size() == 2);
  for (const auto& row : rows) CHECK(row.at("state") == "whole");
  for (const auto* step : {"step-000002", "step-000004"}) {
    const auto exported =
        troupe_checkpoint({"export", folder / "kept" / step, folder / (std::string("of-") + step)});
    REQUIRE(exported.code == 0);
  }
  CHECK(bytes_of(folder / "of-step-000002") == bytes_of(folder / "of-step-000004"));
  CHECK(bytes_of(folder / "of-step-000002") == bytes_of(older / "weights.safetensors"));
  flip_a_bit_at(older / "weights.safetensors", place_of(older / "weights.safetensors", "fc.bias"));
  const auto bad = troupe_checkpoint({"verify", older});
  CHECK(bad.code == 2);
  CHECK_THAT(bad.out, ContainsSubstring("tensor \"fc.bias\" has another checksum"));
}
