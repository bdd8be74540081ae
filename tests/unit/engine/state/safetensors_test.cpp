#include "engine/state/safetensors.hpp"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros.h>

#include <array>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <cstring>
#include <random>

#include "engine/base/random.hpp"
#include "engine/state/safetensors_header.hpp"
#include "tests/refusal.hpp"
#include "tests/unit/lowered_limit.hpp"
#include "tests/unit/scratch_folder.hpp"

namespace {

namespace fs = std::filesystem;
using namespace troupe;
using namespace troupe::engine;
using Catch::Matchers::ContainsSubstring;
using testing::read_bytes;
using testing::scratch_folder;
using testing::write_bytes;

at::Tensor sample(at::ScalarType type) {
  return at::arange(6, at::TensorOptions().dtype(at::kFloat)).reshape({2, 3}).to(type);
}

std::string file_of(const std::string& header, const std::string& data) {
  const std::uint64_t length = header.size();
  std::string bytes(8, '\0');
  std::memcpy(bytes.data(), &length, 8);
  return bytes + header + data;
}

// The error of loading these bytes; it always names the file.
std::string refusal(const std::string& bytes) {
  const scratch_folder folder;
  const auto file = folder / "weights.safetensors";
  write_bytes(file, bytes);
  const error loaded = error_of(load_safetensors(file), errc::bad_data);
  CHECK_THAT(loaded.text, ContainsSubstring(file.string()));
  return loaded.text;
}

std::string refusal(const std::string& header, const std::string& data) {
  return refusal(file_of(header, data));
}

std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder))
    names.push_back(entry.path().filename().string());
  return names;
}

}  // namespace

TEST_CASE("tensors of every type come back equal, in their order, under their names") {
  const scratch_folder folder;
  const auto file = folder / "all.safetensors";
  std::vector<named_tensor> saved;
  for (const auto type : {at::kByte, at::kChar, at::kShort, at::kInt, at::kLong, at::kHalf,
                          at::kBFloat16, at::kFloat, at::kDouble, at::kBool})
    saved.push_back({c10::toString(type), sample(type)});
  saved.push_back({"a scalar", at::scalar_tensor(2.5)});
  saved.push_back({"empty", at::zeros({0, 4})});
  saved.push_back({"quoted \"name\" \xc3\xa9\n", at::ones({1})});
  REQUIRE(save_safetensors(file, saved));
  CHECK(names_in(folder.path()) == std::vector<std::string>{"all.safetensors"});
  const auto loaded = load_safetensors(file).value();
  REQUIRE(loaded.size() == saved.size());
  for (std::size_t i = 0; i < saved.size(); ++i) {
    CHECK(loaded[i].name == saved[i].name);
    CHECK(loaded[i].tensor.scalar_type() == saved[i].tensor.scalar_type());
    CHECK(at::equal(loaded[i].tensor, saved[i].tensor));
  }
}

TEST_CASE("views are stored as the values that they show") {
  const scratch_folder folder;
  const auto file = folder / "views.safetensors";
  const auto base = at::arange(24, at::TensorOptions().dtype(at::kFloat)).reshape({2, 3, 2, 2});
  const std::vector<named_tensor> saved{{"t", base.transpose(0, 1)},
                                        {"last", base.contiguous(at::MemoryFormat::ChannelsLast)},
                                        {"wide", at::ones({1}).expand({5})},
                                        {"grad", at::ones({2}).requires_grad_()}};
  REQUIRE(save_safetensors(file, saved));
  const auto loaded = load_safetensors(file).value();
  for (std::size_t i = 0; i < saved.size(); ++i) {
    CHECK(at::equal(loaded[i].tensor, saved[i].tensor));
    CHECK(loaded[i].tensor.is_contiguous());
    CHECK_FALSE(loaded[i].tensor.requires_grad());
  }
}

TEST_CASE("the header and every tensor are aligned, and equal content gives equal bytes") {
  const scratch_folder folder;
  const std::vector<named_tensor> saved{{"bytes", at::ones({3}).to(at::kByte)},
                                        {"doubles", at::ones({2}).to(at::kDouble)},
                                        {"floats", at::ones({3})}};
  REQUIRE(save_safetensors(folder / "a", saved));
  REQUIRE(save_safetensors(folder / "b", saved));
  const auto bytes = read_bytes(folder / "a");
  CHECK(bytes == read_bytes(folder / "b"));
  std::uint64_t length = 0;
  std::memcpy(&length, bytes.data(), 8);
  CHECK(length % 8 == 0);
  const auto loaded = load_safetensors(folder / "a").value();
  for (const auto& [name, tensor] : loaded)
    CHECK(reinterpret_cast<std::uintptr_t>(tensor.data_ptr()) % tensor.element_size() == 0);
}

TEST_CASE("a file may hold no tensor, and metadata that are passed over") {
  const scratch_folder folder;
  REQUIRE(save_safetensors(folder / "nothing", std::vector<named_tensor>{}));
  CHECK(load_safetensors(folder / "nothing").value().empty());
  write_bytes(folder / "metadata", file_of(R"({"__metadata__":{"step":"12"}})", ""));
  CHECK(load_safetensors(folder / "metadata").value().empty());
}

TEST_CASE("writing to a loaded tensor leaves the file as it is") {
  const scratch_folder folder;
  const auto file = folder / "x";
  REQUIRE(save_safetensors(file, {{"x", at::ones({1000})}}));
  const auto before = read_bytes(file);
  const auto loaded = load_safetensors(file).value();
  loaded[0].tensor.zero_();
  CHECK(read_bytes(file) == before);
  REQUIRE(save_safetensors(file, loaded));  // over the file that the tensor is mapped from
  CHECK(load_safetensors(file).value()[0].tensor.sum().item<float>() == 0);
}

TEST_CASE("a misaligned tensor of another program's file is read") {
  const scratch_folder folder;
  const auto file = folder / "odd";
  write_bytes(file, file_of(R"({"f":{"dtype":"F32","shape":[1],"data_offsets":[1,5]},)"
                            R"("b":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})",
                            std::string("\x07\0\0\x80\x3f", 5)));
  const auto loaded = load_safetensors(file).value();
  CHECK(loaded[0].name == "f");
  CHECK(loaded[0].tensor.item<float>() == 1);
  CHECK(loaded[1].tensor.item<int>() == 7);
}

TEST_CASE("what torch.save wrote is refused with the way out") {
  CHECK_THAT(refusal(std::string("PK\x03\x04\0\0\0\0\0\0\0", 11)),
             ContainsSubstring("zip archive") && ContainsSubstring("save_file"));
  CHECK_THAT(refusal(std::string("\x80\x02\x8a\nl\xfc\x9c\x46\xf9 j\xa8P\x19.", 15)),
             ContainsSubstring("pickle") && ContainsSubstring("save_file"));
  CHECK_THAT(refusal("version https://git-lfs.github.com/spec/v1\n"), ContainsSubstring("git lfs"));
  CHECK_THAT(refusal(std::string("\x89HDF\r\n\x1a\n\0\0\0\0", 12)), ContainsSubstring("HDF5"));
}

TEST_CASE("a header whose length looks like a pickle's magic is read") {
  const scratch_folder folder;
  std::string header = R"({"x":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})";
  header.resize(0x280, ' ');  // the file begins with 80 02
  write_bytes(folder / "x", file_of(header, "\x05"));
  CHECK(load_safetensors(folder / "x").value()[0].tensor.item<int>() == 5);
}

TEST_CASE("missing, empty and short files are refused by name") {
  const scratch_folder folder;
  CHECK_THAT(error_of(load_safetensors(folder / "none"), errc::bad_data).text,
             ContainsSubstring("none") && ContainsSubstring("No such file"));
  CHECK_THAT(load_safetensors(folder.path()).error().text, ContainsSubstring("is not a file"));
  CHECK_THAT(refusal(""), ContainsSubstring("0 bytes"));
  CHECK_THAT(refusal("1234567"), ContainsSubstring("7 bytes"));
  CHECK_THAT(refusal(std::string("\x10\0\0\0\0\0\0\0{}", 10)), ContainsSubstring("truncated"));
  CHECK_THAT(refusal(std::string(16, '\xff')), ContainsSubstring("truncated"));
}

TEST_CASE("a malformed header is refused by name") {
  CHECK_THAT(refusal("", ""), ContainsSubstring("no JSON object"));
  CHECK_THAT(refusal("[]", ""), ContainsSubstring("no JSON object"));
  CHECK_THAT(refusal(" {}", ""), ContainsSubstring("no JSON object"));
  CHECK_THAT(refusal("{\"a\":", ""),
             ContainsSubstring("has a header that ends within its JSON, at line 1, column 6"));
  CHECK_THAT(refusal("{\"\xff\":{}}", ""),
             ContainsSubstring("has a header that is not JSON at line 1, column 3"));
  CHECK_THAT(refusal("{\"a\":1e999}", ""), ContainsSubstring("a number that is too large"));
  CHECK_THAT(refusal("{" + std::string(100000, '['), ""),
             ContainsSubstring("is not JSON at line 1, column 2"));
  CHECK_THAT(refusal("{\"a\":" + std::string(100000, '[') + std::string(100000, ']') + "}", ""),
             ContainsSubstring("\"a\" is described by no JSON object"));
  CHECK_THAT(refusal(R"({"__metadata__":1})", ""), ContainsSubstring("__metadata__"));
  CHECK_THAT(refusal(R"({"__metadata__":{"k":1}})", ""), ContainsSubstring("\"k\" is no text"));
  CHECK_THAT(refusal(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                     R"("a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
                     "xy"),
             ContainsSubstring("\"a\" twice"));
  CHECK_THAT(refusal(R"({"a":{"dtype":"U8","shape":[1],"dtype":"I8","data_offsets":[0,1]}})", "x"),
             ContainsSubstring("\"dtype\" twice"));
}

TEST_CASE("a malformed tensor is refused by name") {
  const auto tensor = [](const std::string& rest) {
    return refusal("{\"w\":" + rest + "}", "12345678");
  };
  CHECK_THAT(tensor("3"), ContainsSubstring("\"w\" is described by no JSON object"));
  CHECK_THAT(tensor(R"({"shape":[2],"data_offsets":[0,8]})"),
             ContainsSubstring("\"w\" has no dtype"));
  CHECK_THAT(tensor(R"({"dtype":"C64","shape":[1],"data_offsets":[0,8]})"),
             ContainsSubstring("\"w\" has the dtype C64") && ContainsSubstring("BF16"));
  for (const auto* shape : {"2", "[-1]", "[1.5]", "[\"2\"]", "[18446744073709551615]", "[null]"})
    CHECK_THAT(tensor(R"({"dtype":"F32","data_offsets":[0,8],"shape":)" + std::string(shape) + "}"),
               ContainsSubstring("\"w\" has no shape"));
  for (const auto* offsets : {"8", "[8]", "[0,4,8]", "[8,0]", "[-8,0]", "[0.0,8.0]", "[null,8]"})
    CHECK_THAT(tensor(R"({"dtype":"F32","shape":[2],"data_offsets":)" + std::string(offsets) + "}"),
               ContainsSubstring("\"w\" has no data_offsets"));
  CHECK_THAT(tensor(R"({"dtype":"F32","shape":[3],"data_offsets":[0,12]})"),
             ContainsSubstring("\"w\" ends at byte 12") && ContainsSubstring("truncated"));
  CHECK_THAT(tensor(R"({"dtype":"F32","shape":[3],"data_offsets":[0,8]})"),
             ContainsSubstring("\"w\" needs 12 bytes"));
  CHECK_THAT(tensor(R"({"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]})"),
             ContainsSubstring("\"w\" has a shape that is too large"));
  CHECK_THAT(tensor(R"({"dtype":"F32","shape":[0,9223372036854775807,3],"data_offsets":[0,0]})"),
             ContainsSubstring("\"w\" has a shape that is too large"));
  CHECK_THAT(tensor(R"({"dtype":"U8","shape":[7],"data_offsets":[0,7]})"),
             ContainsSubstring("1 bytes that belong to no tensor"));
  CHECK_THAT(tensor(R"({"dtype":"U8","shape":[7],"data_offsets":[1,8]})"),
             ContainsSubstring("\"w\" stands behind a gap"));
  CHECK_THAT(tensor(R"({"dtype":"BOOL","shape":[8],"data_offsets":[0,8]})"),
             ContainsSubstring("\"w\" has a BOOL that is neither 0 nor 1"));
  CHECK_THAT(tensor(R"({"dtype":"U8","shape":[5],"data_offsets":[0,5]},)"
                    R"("v":{"dtype":"U8","shape":[4],"data_offsets":[4,8]})"),
             ContainsSubstring("\"v\" overlaps"));
}

TEST_CASE("a file cut at any byte is refused") {
  const scratch_folder folder;
  REQUIRE(save_safetensors(folder / "x", {{"x", at::ones({3})}, {"y", at::ones({2})}}));
  const auto whole = read_bytes(folder / "x");
  for (std::size_t size = 0; size < whole.size(); ++size) refusal(whole.substr(0, size));
  CHECK_THAT(refusal(whole + "!"), ContainsSubstring("1 bytes that belong to no tensor"));
}

TEST_CASE("random damage never does more than an error") {
  const std::uint64_t seed = std::random_device{}();
  INFO("seed " << seed);
  splitmix64 random(seed);
  const scratch_folder folder;
  const auto file = folder / "fuzz";
  const auto whole =
      file_of(R"({"__metadata__":{"k":"v"},"x":{"dtype":"F32","shape":[3],"data_offsets":[0,12]},)"
              R"("b":{"dtype":"BOOL","shape":[2,3],"data_offsets":[12,18]}})",
              std::string(18, '\1'));
  int accepted = 0;
  for (int round = 0; round < 3000; ++round) {
    auto bytes = whole;
    if (round % 4 == 0) {
      bytes.resize(random.below(200));
      for (auto& byte : bytes) byte = static_cast<char>(random.next());
    } else {
      for (auto left = 1 + random.below(4); left > 0; --left)
        bytes[random.below(bytes.size())] = static_cast<char>(random.next());
    }
    const auto header = parse_safetensors_header(std::as_bytes(std::span(bytes)));
    if (!header) {
      REQUIRE(header.error().code == errc::bad_data);
      continue;
    }
    ++accepted;
    write_bytes(file, bytes);
    const auto loaded = load_safetensors(file);  // may still refuse a BOOL
    if (!loaded) continue;
    for (const auto& item : *loaded) (void)item.tensor.to(at::kDouble).sum().item<double>();
  }
  CHECK(accepted > 0);  // damage within a float's bytes is no damage to the file's form
  CHECK(accepted < 3000);
}

TEST_CASE("what the format cannot hold is refused before anything is written") {
  const scratch_folder folder;
  const auto x = at::ones({1});
  const auto refused = [&folder](const std::vector<named_tensor>& tensors) {
    const error saved = error_of(save_safetensors(folder / "x", tensors), errc::bad_data);
    CHECK(names_in(folder.path()).empty());
    return saved.text;
  };
  CHECK_THAT(refused({{"w", x}, {"w", x}}), ContainsSubstring("\"w\" is given twice"));
  CHECK_THAT(refused({{"w", at::Tensor()}}), ContainsSubstring("\"w\" is undefined"));
  CHECK_THAT(refused({{"w", x.to(at::kComplexFloat)}}), ContainsSubstring("ComplexFloat"));
  CHECK_THAT(refused({{"w", x.to_sparse()}}), ContainsSubstring("\"w\" is sparse"));
  CHECK_THAT(refused({{"__metadata__", x}}), ContainsSubstring("keeps for itself"));
  CHECK_THAT(refused({{"\xff", x}}), ContainsSubstring("UTF-8"));
}

TEST_CASE("a failed write names the file and leaves the old one and nothing else") {
  const scratch_folder folder;
  const auto file = folder / "weights.safetensors";
  REQUIRE(save_safetensors(file, {{"x", at::ones({4})}}));
  const auto before = read_bytes(file);
  const auto saved = [&file] {
    const tests::small_files full(4096);
    return save_safetensors(file, {{"x", at::ones({100000})}});
  }();
  check_refused(saved, errc::io_failed, file.string());
  CHECK(read_bytes(file) == before);
  CHECK(names_in(folder.path()) == std::vector<std::string>{"weights.safetensors"});
}

TEST_CASE("a place that cannot be written to is an error that names the file") {
  const scratch_folder folder;
  fs::create_directory(folder / "taken");
  write_bytes(folder / "plain", "x");
  for (const auto& file : {folder / "none" / "x", folder / "taken", folder / "plain" / "x"})
    check_refused(save_safetensors(file, {{"x", at::ones({4})}}), errc::io_failed, file.string());
  CHECK(names_in(folder.path()).size() == 2);
}
