// Files that are read and written tensor by tensor.

#include "engine/state/tensor_reader.hpp"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>

#include <atomic>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <filesystem>
#include <fstream>
#include <thread>

#include "engine/model/blocks.hpp"
#include "engine/model/model.hpp"
#include "engine/state/model_file.hpp"
#include "engine/state/safetensors.hpp"
#include "tests/refusal.hpp"
#include "tests/unit/scratch_folder.hpp"

namespace {

using namespace troupe;
using namespace troupe::engine;
using Catch::Matchers::ContainsSubstring;
using testing::read_bytes;
using testing::scratch_folder;
using testing::write_bytes;

std::vector<named_tensor> mixed() {
  return {{"weight", at::randn({40, 30})},
          {"count", at::full({}, 7, at::kLong)},
          {"half", at::randn({5, 3}).to(at::kBFloat16)},
          {"empty", at::empty({0, 4})},
          {"flags", at::ones({3}).to(at::kBool)}};
}

/// The same tensors as they may come from stages: in another order, and in runs.
tensor_stream in_runs(const std::vector<named_tensor>& tensors, std::int64_t most) {
  auto made = stream_of(tensors);
  made.send = [tensors, most](const tensor_stream::taker& take) -> result<void> {
    for (auto each = tensors.rbegin(); each != tensors.rend(); ++each) {
      const auto flat = each->tensor.flatten();
      for (std::int64_t first = 0; first == 0 || first < flat.numel(); first += most) {
        const auto run = flat.narrow(0, first, std::min(most, flat.numel() - first));
        if (auto taken = take(each->name, static_cast<std::uint64_t>(first), run); !taken)
          return taken;
      }
    }
    return {};
  };
  return made;
}

}  // namespace

TEST_CASE("tensors that come in runs and in any order give the same file") {
  const scratch_folder folder;
  const auto tensors = mixed();
  REQUIRE(save_safetensors(folder / "whole", tensors));
  for (const std::int64_t most : {1, 7, 100000}) {
    REQUIRE(save_safetensors(folder / "runs", in_runs(tensors, most)));
    CHECK(read_bytes(folder / "runs") == read_bytes(folder / "whole"));
  }
}

TEST_CASE("a stream that does not keep to what it announced leaves the old file") {
  const scratch_folder folder;
  const auto x = at::arange(6, at::kFloat);
  write_bytes(folder / "x", "old");
  const auto refused = [&](const std::function<result<void>(const tensor_stream::taker&)>& send) {
    const error saved = error_of(save_safetensors(
        folder / "x", tensor_stream{.forms = {{"w", at::kFloat, {2, 3}}}, .send = send}));
    CHECK(read_bytes(folder / "x") == "old");
    CHECK(std::distance(std::filesystem::directory_iterator(folder.path()), {}) == 1);
    return saved;
  };
  const auto takes = [&](const std::string& name, std::uint64_t first, const at::Tensor& run) {
    return refused([&](const auto& take) { return take(name, first, run); }).text;
  };
  CHECK_THAT(takes("v", 0, x), ContainsSubstring("\"v\" was not announced"));
  CHECK_THAT(takes("w", 1, x), ContainsSubstring("\"w\" is not what was announced"));
  CHECK_THAT(takes("w", 0, x.to(at::kDouble)), ContainsSubstring("is not what was announced"));
  CHECK_THAT(takes("w", 0, at::cat({x, x})), ContainsSubstring("is not what was announced"));
  CHECK_THAT(takes("w", 0, x.narrow(0, 0, 5)), ContainsSubstring("\"w\" did not come whole"));
  const auto lost = refused([](const auto&) { return fail(errc::peer_lost, "stage-1 is gone"); });
  CHECK(lost.code == errc::peer_lost);
}

TEST_CASE("single tensors and runs of a file are read, also after it was replaced") {
  const scratch_folder folder;
  const auto file = folder / "x";
  const auto tensors = mixed();
  REQUIRE(save_safetensors(file, tensors));
  const auto reader = tensor_reader::open(file).value();
  REQUIRE(save_safetensors(file, {{"weight", at::zeros({40, 30})}}));
  CHECK(reader->tensors().size() == tensors.size());
  CHECK(reader->find("none") == nullptr);
  for (const auto& [name, tensor] : tensors) {
    INFO(name);
    const auto read = reader->read(*reader->find(name)).value();
    CHECK(at::equal(read, tensor));
  }
  const auto run = reader->read_run(*reader->find("weight"), 31, 5).value();
  CHECK(at::equal(run, tensors[0].tensor.flatten().narrow(0, 31, 5)));
  std::vector<at::Tensor> runs;
  REQUIRE(reader->for_each_run(*reader->find("weight"), [&](const at::Tensor& each) {
    runs.push_back(each);
    return result<void>();
  }));
  CHECK(at::equal(at::cat(runs), tensors[0].tensor.flatten()));
}

TEST_CASE("a file's identity tells it from later ones of its name and from others") {
  const scratch_folder folder;
  const std::vector<named_tensor> x{{"x", at::zeros({4})}}, y{{"y", at::zeros({4})}};
  REQUIRE(save_safetensors(folder / "a", x));
  const auto first = tensor_reader::open(folder / "a").value()->identity();
  CHECK(tensor_reader::open(folder / "a").value()->identity() == first);
  std::filesystem::create_symlink("a", folder / "link");
  CHECK(tensor_reader::open(folder / "link").value()->identity() == first);
  REQUIRE(save_safetensors(folder / "a", x));
  std::filesystem::last_write_time(folder / "a", std::filesystem::file_time_type());
  CHECK(tensor_reader::open(folder / "a").value()->identity() != first);
  REQUIRE(save_safetensors(folder / "b", y));
  const auto time = std::filesystem::last_write_time(folder / "a");
  std::filesystem::last_write_time(folder / "b", time);
  CHECK(tensor_reader::open(folder / "a").value()->identity().header_hash !=
        tensor_reader::open(folder / "b").value()->identity().header_hash);
}

TEST_CASE("a file that is cut while it is open, or holds a wrong BOOL, is an error by name") {
  const scratch_folder folder;
  const auto file = folder / "x";
  REQUIRE(save_safetensors(file, {{"w", at::ones({8})}, {"flag", at::ones({1}).to(at::kBool)}}));
  auto bytes = read_bytes(file);
  bytes.back() = 2;
  write_bytes(file, bytes);
  const auto reader = tensor_reader::open(file).value();
  CHECK_THAT(error_of(reader->read(*reader->find("flag"))).text,
             ContainsSubstring("\"flag\" has a BOOL"));
  constexpr auto too_many = std::uint64_t{1} << 48;  // which is no fault of the file
  CHECK_THAT(error_of(reader->read_run(*reader->find("w"), 0, too_many), errc::handler_failed).text,
             ContainsSubstring(file.string()) && ContainsSubstring("there is no memory for"));
  std::filesystem::resize_file(file, bytes.size() - 8);
  const error cut = error_of(reader->read(*reader->find("w")), errc::bad_data);
  CHECK_THAT(cut.text, ContainsSubstring(file.string()) && ContainsSubstring("cut"));
  CHECK_FALSE(tensor_reader::open(file));
  CHECK_FALSE(tensor_reader::open(folder / "none"));
}

TEST_CASE("a file that somebody writes to while it is open is told from one that was replaced") {
  const scratch_folder folder;
  const auto file = folder / "x";
  REQUIRE(save_safetensors(file, {{"x", at::zeros({4})}}));
  const auto reader = tensor_reader::open(file).value();
  CHECK(check_unchanged({reader}));
  REQUIRE(save_safetensors(file, {{"x", at::ones({4})}}));
  CHECK(check_unchanged({reader}));
  const auto other = tensor_reader::open(file).value();
  const auto time = std::filesystem::last_write_time(file);
  std::filesystem::last_write_time(file, time + std::chrono::nanoseconds(1));
  CHECK(error_of(check_unchanged({reader, other}), errc::bad_data).text ==
        file.string() + " was changed while it was to be read");
  std::filesystem::last_write_time(file, time);
  CHECK(check_unchanged({other}));
  std::filesystem::resize_file(file, 8);
  std::filesystem::last_write_time(file, time);
  CHECK_FALSE(check_unchanged({other}));
}

TEST_CASE("a file that is cut and written again while it is opened never ends the process") {
  const scratch_folder folder;
  const auto file = folder / "x";
  REQUIRE(save_safetensors(file, {{"x", at::zeros({1 << 10})}}));
  const auto bytes = read_bytes(file);
  std::atomic<bool> is_over = false;
  std::jthread other([&] {
    while (!is_over) {
      std::filesystem::resize_file(file, 0);
      std::ofstream(file, std::ios::binary) << bytes;
    }
  });
  int opened = 0;
  for (int i = 0; i < 20000 || (opened == 0 && i < 2000000); ++i)
    if (tensor_reader::open(file)) ++opened;
  is_over = true;
  CHECK(opened > 0);
}

TEST_CASE("a header longer than what is read of a file at first is read whole") {
  const scratch_folder folder;
  std::vector<named_tensor> many;
  for (int i = 0; i < 3000; ++i)
    many.push_back({"a tensor with a long name, " + std::to_string(i), at::full({2}, i)});
  REQUIRE(save_safetensors(folder / "x", many));
  const auto reader = tensor_reader::open(folder / "x");
  REQUIRE(reader);
  CHECK((*reader)->data_begin() > (64 << 10));
  CHECK((*reader)->tensors().size() == many.size());
  const auto last = (*reader)->read((*reader)->tensors().back());
  REQUIRE(last);
  CHECK(at::equal(*last, many.back().tensor));
}

TEST_CASE("a model takes its tensors out of a file, and says what it lacks") {
  const scratch_folder folder;
  model layers;
  layers.push_back(std::make_unique<linear>("fc", 3, 2, at::Generator()));
  const auto own = collect_weights(layers);
  const auto before = own[1].tensor.clone();
  REQUIRE(save_safetensors(folder / "x", {{"fc.weight", at::full({2, 3}, 5.0)},
                                          {"fc.bias", at::full({2}, 6.0)},
                                          {"other", at::ones({1})}}));
  const auto reader = tensor_reader::open(folder / "x").value();
  REQUIRE(load_weights({reader}, own, {"fc.bias"}));
  CHECK(at::equal(own[0].tensor, at::full({2, 3}, 5.F)));
  CHECK(at::equal(own[1].tensor, before));
  REQUIRE(load_weights({reader}, own, {}));
  CHECK(at::equal(own[1].tensor, at::full({2}, 6.F)));
  REQUIRE(save_safetensors(folder / "y", {{"fc.weight", at::ones({3, 3})}}));
  const auto wrong = tensor_reader::open(folder / "y").value();
  CHECK_THAT(error_of(load_weights({wrong}, own, {}), errc::bad_config).text,
             ContainsSubstring("'fc.weight' has shape [3, 3]"));
  CHECK_THAT(load_weights({wrong}, own, {"fc.weight"}).error().text,
             ContainsSubstring("'fc.bias' of the model is missing"));
  REQUIRE(save_safetensors(folder / "z", {{"fc.weight", at::ones({2, 3}, at::kLong)}}));
  CHECK_THAT(load_weights({tensor_reader::open(folder / "z").value()}, own, {}).error().text,
             ContainsSubstring("'fc.weight' is of type Long, but the model expects Float"));
}

TEST_CASE("weights out of a file get the model's dtype and keep its memory format") {
  const scratch_folder folder;
  model layers;
  layers.push_back(std::make_unique<convolution>(
      "conv", convolution_options{.in_channels = 2, .out_channels = 3, .kernel = 3},
      at::Generator()));
  to_memory_format(layers, true);
  const auto held = layers.front()->parameters().front().tensor;  // as an optimizer would
  const auto given = at::randn({3, 2, 3, 3}, at::kDouble);
  REQUIRE(save_safetensors(folder / "x", {{"conv.weight", given}}));
  REQUIRE(load_weights({tensor_reader::open(folder / "x").value()}, collect_weights(layers), {}));
  CHECK(at::equal(held, given.to(at::kFloat)));
  CHECK(held.requires_grad());
  CHECK(held.suggest_memory_format() == at::MemoryFormat::ChannelsLast);
}
