#include "engine/data/dataset.hpp"
#include "engine/data/data_registry.hpp"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <zlib.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <cmath>

#include "engine/data/sampler.hpp"
#include "engine/state/safetensors.hpp"
#include "tests/refusal.hpp"
#include "tests/unit/scratch_folder.hpp"

namespace {

namespace fs = std::filesystem;
using namespace troupe;
using namespace troupe::engine;
using Catch::Matchers::ContainsSubstring;
using testing::read_bytes;
using testing::scratch_folder;
using testing::write_bytes;
using numbers = std::vector<std::int64_t>;

dataset_options source(std::string text) {
  dataset_options options;
  options.source = std::move(text);
  return options;
}

error refusal(const dataset_options& options) {
  return error_of(open_dataset(options));
}

numbers labels_of(const batch& read) {
  const auto* values = read.labels.const_data_ptr<std::int64_t>();
  return {values, values + read.labels.numel()};
}

numbers first_samples(std::int64_t count) {
  return epoch_order(count, 0, 0, false);
}

void skip_without_fashion_mnist() {
  if (!fs::exists("/usr/share/datasets/fashion-mnist"))
    SKIP("the Debian package dataset-fashion-mnist is not installed");
}

std::string gzipped(const std::string& bytes) {
  const scratch_folder folder;
  const auto file = folder / "x.gz";
  auto* handle = gzopen(file.c_str(), "wb");
  REQUIRE(gzwrite(handle, bytes.data(), static_cast<unsigned>(bytes.size())) ==
          static_cast<int>(bytes.size()));
  REQUIRE(gzclose(handle) == Z_OK);
  return read_bytes(file);
}

std::string big_endian(std::uint32_t value) {
  std::string bytes;
  for (int shift = 24; shift >= 0; shift -= 8) bytes += static_cast<char>(value >> shift);
  return bytes;
}

std::string idx_images(std::uint32_t count, std::uint32_t side = 28) {
  return big_endian(0x803) + big_endian(count) + big_endian(side) + big_endian(side) +
         std::string(std::size_t{count} * side * side, '\x80');
}

std::string idx_labels(const std::string& labels) {
  return big_endian(0x801) + big_endian(static_cast<std::uint32_t>(labels.size())) + labels;
}

// A Fashion-MNIST of two training images and one test image.
class small_fashion {
 public:
  small_fashion() {
    put("train-images-idx3-ubyte.gz", gzipped(idx_images(2)));
    put("train-labels-idx1-ubyte.gz", gzipped(idx_labels("\x03\x09")));
    put("t10k-images-idx3-ubyte", idx_images(1));  // as it is after gunzip
    put("t10k-labels-idx1-ubyte", idx_labels("\x01"));
  }
  void put(const std::string& name, const std::string& bytes) const {
    write_bytes(folder_ / name, bytes);
  }
  [[nodiscard]] fs::path file(const std::string& name) const { return folder_ / name; }
  [[nodiscard]] dataset_options options() const {
    return source("fashion-mnist:" + folder_.path().string());
  }
  // The error after one file was replaced; it names that file.
  [[nodiscard]] std::string refusal_of(const std::string& name, const std::string& bytes) const {
    put(name, bytes);
    const auto problem = refusal(options());
    CHECK(problem.code == errc::bad_data);
    CHECK_THAT(problem.text, ContainsSubstring(file(name).string()));
    return problem.text;
  }

 private:
  scratch_folder folder_;
};

}  // namespace

TEST_CASE("Fashion-MNIST is read from Debian's package") {
  skip_without_fashion_mnist();
  const auto data = open_dataset(source("fashion-mnist")).value();
  CHECK(data->size(split::train) == 60000);
  CHECK(data->size(split::test) == 10000);
  CHECK(data->classes() == 10);
  CHECK(data->sample_shape() == numbers{3, 32, 32});
  const auto train = data->read(split::train, first_samples(16)).value();
  CHECK(train.inputs.sizes() == numbers{16, 3, 32, 32});
  CHECK(train.inputs.scalar_type() == at::kFloat);
  CHECK(labels_of(train) == numbers{9, 0, 0, 3, 0, 2, 7, 2, 5, 5, 0, 9, 5, 5, 7, 9});
  CHECK(labels_of(data->read(split::test, first_samples(8)).value()) ==
        numbers{9, 2, 1, 1, 6, 1, 4, 6});
  for (std::int64_t channel = 1; channel < 3; ++channel)
    CHECK(at::equal(train.inputs.select(1, 0), train.inputs.select(1, channel)));
}

TEST_CASE("Fashion-MNIST's training images have mean 0 and deviation 1") {
  skip_without_fashion_mnist();
  auto options = source("fashion-mnist");
  options.image_size = 28;  // the pixels themselves
  const auto data = open_dataset(options).value();
  const auto all = data->read(split::train, first_samples(60000)).value().inputs.select(1, 0);
  CHECK(std::abs(all.mean().item<double>()) < 1e-3);
  CHECK(std::abs(all.std().item<double>() - 1) < 1e-3);
  const auto pixels = (all[0].to(at::kDouble) * 0.3530 + 0.2860) * 255;
  CHECK(std::abs(pixels.sum().item<double>() - 76247) < 0.1);  // summed by another program
}

TEST_CASE("a batch is read in the order of its indices, again and again alike") {
  skip_without_fashion_mnist();
  const auto data = open_dataset(source("fashion-mnist")).value();
  const auto both = data->read(split::train, numbers{3, 59999, 3}).value();
  const auto last = data->read(split::train, numbers{59999}).value();
  CHECK(at::equal(both.inputs[1], last.inputs[0]));
  CHECK(at::equal(both.inputs[0], both.inputs[2]));
  CHECK(data->read(split::train, {}).value().inputs.sizes() == numbers{0, 3, 32, 32});
  for (const std::int64_t outside : {-1L, 60000L})
    CHECK_THAT(error_of(data->read(split::train, numbers{0, outside})).text,
               ContainsSubstring(std::to_string(outside)));
}

TEST_CASE("reading leaves the number of intra-op threads alone") {
  skip_without_fashion_mnist();
  const auto threads = at::get_num_threads();
  const auto data = open_dataset(source("fashion-mnist")).value();
  CHECK(data->read(split::train, first_samples(64)));
  CHECK(at::get_num_threads() == threads);
}

TEST_CASE("a missing Fashion-MNIST says which package to install") {
  const scratch_folder folder;
  const auto problem = refusal(source("fashion-mnist:" + (folder / "none").string()));
  CHECK(problem.code == errc::bad_data);
  CHECK_THAT(problem.text, ContainsSubstring("none") && ContainsSubstring("dataset-fashion-mnist"));
  const small_fashion small;
  fs::remove(small.file("t10k-labels-idx1-ubyte"));
  CHECK_THAT(refusal(small.options()).text, ContainsSubstring("t10k-labels-idx1-ubyte"));
}

TEST_CASE("IDX files are read gzipped and plain") {
  const auto data = open_dataset(small_fashion().options()).value();
  CHECK(data->size(split::train) == 2);
  CHECK(data->size(split::test) == 1);
  const auto read = data->read(split::train, first_samples(2)).value();
  CHECK(labels_of(read) == numbers{3, 9});
  const auto expected = (128 / 255.0 - 0.2860) / 0.3530;
  CHECK((read.inputs - expected).abs().max().item<double>() < 1e-5);
}

TEST_CASE("damaged IDX files are refused by name") {
  const small_fashion small;
  const std::string images = "train-images-idx3-ubyte.gz";
  const std::string labels = "train-labels-idx1-ubyte.gz";
  const auto good = gzipped(idx_images(2));
  for (const auto size : {good.size() - 1, good.size() - 8, good.size() / 2, std::size_t{12}})
    CHECK_THAT(small.refusal_of(images, good.substr(0, size)), ContainsSubstring("end early"));
  auto flipped = good;
  flipped[good.size() - 6] = static_cast<char>(flipped[good.size() - 6] ^ 1);  // the checksum
  CHECK_THAT(small.refusal_of(images, flipped), ContainsSubstring("damaged"));
  CHECK_THAT(small.refusal_of(images, ""), ContainsSubstring("truncated"));
  CHECK_THAT(small.refusal_of(images, gzipped("short")), ContainsSubstring("truncated"));
  const auto cut = idx_images(2).substr(0, 1000);
  CHECK_THAT(small.refusal_of(images, gzipped(cut)), ContainsSubstring("truncated"));
  CHECK_THAT(small.refusal_of(images, cut), ContainsSubstring("truncated"));
  CHECK_THAT(small.refusal_of(images, gzipped(idx_images(2) + "x")),
             ContainsSubstring("more than"));
  CHECK_THAT(small.refusal_of(images, gzipped(idx_labels(std::string(64, '\x01')))),
             ContainsSubstring("no IDX file"));
  CHECK_THAT(small.refusal_of(images, gzipped(idx_images(2, 32))),
             ContainsSubstring("32 instead of 28"));
  CHECK_THAT(small.refusal_of(images, gzipped(idx_images(0))), ContainsSubstring("0 items"));
  auto huge = idx_images(2);
  huge.replace(4, 4, big_endian(0xffffffff));
  CHECK_THAT(small.refusal_of(images, gzipped(huge)), ContainsSubstring("4294967295 items"));
  small.put(images, good);
  CHECK_THAT(small.refusal_of(labels, gzipped(idx_labels("\x01"))),
             ContainsSubstring("1 labels") && ContainsSubstring("2 images"));
  CHECK_THAT(small.refusal_of(labels, gzipped(idx_labels("\x01\x0a"))),
             ContainsSubstring("label 10 at index 1"));
}

TEST_CASE("synthetic images depend on seed, split and index alone") {
  auto options = source("synthetic:3x8x6:7:50");
  options.seed = 5;
  const auto data = open_dataset(options).value();
  CHECK(data->size(split::train) == 50);
  CHECK(data->size(split::test) == 5);
  CHECK(data->classes() == 7);
  CHECK(data->sample_shape() == numbers{3, 8, 6});
  const auto all = data->read(split::train, first_samples(50)).value();
  const auto some = open_dataset(options).value()->read(split::train, numbers{49, 7}).value();
  CHECK(at::equal(some.inputs[0], all.inputs[49]));
  CHECK(at::equal(some.inputs[1], all.inputs[7]));
  CHECK(labels_of(some) == numbers{labels_of(all)[49], labels_of(all)[7]});
  CHECK_FALSE(at::equal(data->read(split::test, first_samples(5)).value().inputs,
                        all.inputs.narrow(0, 0, 5)));
  options.seed = 6;
  CHECK_FALSE(
      at::equal(open_dataset(options).value()->read(split::train, first_samples(50)).value().inputs,
                all.inputs));
}

TEST_CASE("synthetic images are normal, their labels uniform") {
  const auto data = open_dataset(source("synthetic:3x32x33:4")).value();
  CHECK(data->size(split::train) == 1000);
  const auto all = data->read(split::train, first_samples(1000)).value();
  CHECK(std::abs(all.inputs.mean().item<double>()) < 3e-3);
  CHECK(std::abs(all.inputs.std().item<double>() - 1) < 3e-3);
  CHECK(std::abs((all.inputs < -1).to(at::kDouble).mean().item<double>() - 0.1587) < 2e-3);
  CHECK(std::abs((all.inputs > 2).to(at::kDouble).mean().item<double>() - 0.02275) < 1e-3);
  for (int label = 0; label < 4; ++label) {
    const auto count = (all.labels == label).sum().item<int>();
    CHECK((count > 190 && count < 310));
  }
}

TEST_CASE("a malformed synthetic source is refused with an example") {
  for (const auto* text : {"synthetic:", "synthetic:3x8x8", "synthetic:3x8:10",
                           "synthetic:3x8x8:", "synthetic:0x8x8:10", "synthetic:3x8x8:0",
                           "synthetic:3x8x8:10:0", "synthetic:3x-8x8:10", "synthetic:3x8x8:10:5:6",
                           "synthetic:3x8x8:10:5x", "synthetic:3x8x8:99999999999999",
                           "synthetic:3x8x8:10:99999999999999999999", "synthetic:axbxc:d"}) {
    INFO(text);
    const auto problem = refusal(source(text));
    CHECK(problem.code == errc::bad_config);
    CHECK_THAT(problem.text, ContainsSubstring("synthetic:CxHxW:CLASSES"));
  }
}

TEST_CASE("numbers of a synthetic source that are too large are refused with the range") {
  CHECK_THAT(refusal(source("synthetic:3x8x8:10:99999999999999")).text,
             ContainsSubstring("with numbers of 1 to 1099511627776"));
}

TEST_CASE("synthetic images and classes that no model takes are refused with what is allowed") {
  CHECK_THAT(refusal(source("synthetic:9999999x9999999x9999999:2")).text,
             ContainsSubstring("an image of more than 268435456 values is too large"));
  CHECK_THAT(refusal(source("synthetic:3x8x8:16777217")).text,
             ContainsSubstring("16777217 classes are too many; allowed: 1 to 16777216"));
}

TEST_CASE("unknown sources and impossible options are refused with what is possible") {
  for (const auto* text : {"", "imagenet", "fashion:x", "folder", "safetensors:"}) {
    const auto problem = refusal(source(text));
    CHECK(problem.code == errc::bad_config);
    CHECK_THAT(problem.text, ContainsSubstring("fashion-mnist[:DIR], folder:PATH"));
  }
  const testing::scratch_folder here;
  const auto bare = here.path().string();
  testing::write_bytes(here / "words.txt", "some");
  struct row {
    std::string given;
    std::string meant;
  };
  for (const auto& [given, meant] :
       {row{bare, "folder:" + bare}, row{"foldr:" + bare, "folder:" + bare},
        row{bare + "/none", "folder:" + bare + "/none"}, row{"fashion:x", "fashion-mnist:x"},
        row{"txt", "text"}, row{bare + "/words.txt", "text:" + bare + "/words.txt"},
        row{bare + "/d.safetensors", "safetensors:" + bare + "/d.safetensors"}})
    CHECK_THAT(refusal(source(given)).text,
               ContainsSubstring("unknown data source \"" + given + "\"; did you mean " + meant +
                                 "? known are: fashion-mnist"));
  CHECK_THAT(refusal(source("imagenet")).text, !ContainsSubstring("did you mean"));
  auto options = source("synthetic:3x8x8:10");
  options.image_size = -1;
  CHECK_THAT(refusal(options).text, ContainsSubstring("image_size = -1"));
  options.image_size = 16;
  CHECK_THAT(refusal(options).text, ContainsSubstring("8x8"));
  options.image_size = 8;
  CHECK(open_dataset(options));
  options.threads = 0;
  CHECK_THAT(refusal(options).text, ContainsSubstring("threads = 0"));
}

TEST_CASE("a source of one's own is opened and listed like any other") {
  auto known = built_in_data();
  known.add("noise", {"noise:CLASSES", [](std::string_view rest, const dataset_options& options) {
                        auto like = options;
                        like.source = "synthetic:3x8x8:" + std::string(rest);
                        return open_dataset(like);
                      }});
  CHECK(open_dataset(source("noise:7"), known).value()->classes() == 7);
  CHECK(open_dataset(source("synthetic:3x8x8:2"), known).value()->classes() == 2);
  const auto refused = [&](const char* text) {
    return open_dataset(source(text), known).error().text;
  };
  CHECK_THAT(refused("noise"), ContainsSubstring("is incomplete") &&
                                   ContainsSubstring("text[:PATH,..], noise:CLASSES"));
  CHECK_THAT(refused("nois:7"), ContainsSubstring("did you mean noise:7?"));
  CHECK_THAT(refusal(source("noise:7")).text, !ContainsSubstring("noise:CLASSES"));
}

TEST_CASE("tensors of a safetensors file are read as they are") {
  const scratch_folder folder;
  const auto file = folder / "d";
  const auto images = at::arange(5 * 2 * 3 * 4).to(at::kFloat).reshape({5, 2, 3, 4});
  const auto labels = at::arange(5).to(at::kLong) * 2;
  const auto save = [&file](const std::vector<named_tensor>& tensors) {
    REQUIRE(save_safetensors(file, tensors));
  };
  save({{"images", images}, {"labels", labels}, {"something else", labels}});
  const auto options = source("safetensors:" + file.string());
  auto data = open_dataset(options).value();
  CHECK(data->size(split::train) == 5);
  CHECK(data->size(split::test) == 0);
  CHECK(data->classes() == 9);
  CHECK(data->sample_shape() == numbers{2, 3, 4});
  auto read = data->read(split::train, numbers{4, 0}).value();
  CHECK(at::equal(read.inputs[0], images[4]));
  CHECK(at::equal(read.inputs[1], images[0]));
  CHECK(labels_of(read) == numbers{8, 0});
  read.inputs.zero_();  // the batch's own memory
  CHECK(at::equal(data->read(split::train, numbers{4}).value().inputs[0], images[4]));
  CHECK_FALSE(data->read(split::test, numbers{0}));
  save({{"images", images},
        {"labels", labels},
        {"test_images", images.narrow(0, 0, 2)},
        {"test_labels", labels.narrow(0, 0, 2) + 20}});
  data = open_dataset(options).value();
  CHECK(data->size(split::test) == 2);
  CHECK(data->classes() == 23);
  CHECK(labels_of(data->read(split::test, numbers{1}).value()) == numbers{22});
}

TEST_CASE("a digest of tensors tells one image or label that is another one, also a large image") {
  const scratch_folder folder;
  const auto file = folder / "d";
  const auto digest_of = [&file](const at::Tensor& images, const at::Tensor& labels) {
    REQUIRE(save_safetensors(file, {{"images", images}, {"labels", labels}}));
    return open_dataset(source("safetensors:" + file.string())).value()->digest().value();
  };
  const auto labels = at::arange(5).to(at::kLong);
  for (const std::int64_t side : {4, 64}) {
    const auto images = at::zeros({5, 3, side, side});
    const auto before = digest_of(images, labels);
    CHECK(digest_of(images.clone(), labels.clone()) == before);
    auto other = images.clone();
    other[3].fill_(1);
    CHECK(digest_of(other, labels) != before);
    CHECK(digest_of(images, labels + 1) != before);
    CHECK(digest_of(images.narrow(0, 0, 4), labels.narrow(0, 0, 4)) != before);
  }
}

TEST_CASE("a digest of Fashion-MNIST tells another image and another label") {
  const small_fashion small;
  const auto digest = [&small] { return open_dataset(small.options()).value()->digest().value(); };
  const auto before = digest();
  CHECK(digest() == before);
  small.put("t10k-labels-idx1-ubyte", idx_labels("\x02"));
  CHECK(digest() != before);
  small.put("t10k-labels-idx1-ubyte", idx_labels("\x01"));
  CHECK(digest() == before);
  auto pixels = idx_images(1);
  pixels.back() = '\x7f';
  small.put("t10k-images-idx3-ubyte", pixels);
  CHECK(digest() != before);
}

TEST_CASE("what a source makes itself has no digest, and leaves nothing out") {
  const auto data = open_dataset(source("synthetic:3x8x8:10")).value();
  CHECK(data->digest().value().empty());
  CHECK(data->left_out().value() == left_out_samples());
  CHECK(data->name_of(split::test, 7) == "test sample 7");
}

TEST_CASE("a safetensors file that is no data set is refused by name") {
  const scratch_folder folder;
  const auto file = folder / "d";
  const auto images = at::zeros({5, 2, 3, 4});
  const auto labels = at::zeros({5}).to(at::kLong);
  const auto problem = [&file](const std::vector<named_tensor>& tensors) {
    REQUIRE(save_safetensors(file, tensors));
    const auto refused = refusal(source("safetensors:" + file.string()));
    CHECK(refused.code == errc::bad_data);
    CHECK_THAT(refused.text, ContainsSubstring(file.string()));
    return refused.text;
  };
  CHECK_THAT(problem({{"labels", labels}}), ContainsSubstring("no tensor \"images\""));
  CHECK_THAT(problem({{"images", images}}), ContainsSubstring("no tensor \"labels\""));
  CHECK_THAT(problem({{"images", images.to(at::kDouble)}, {"labels", labels}}),
             ContainsSubstring("\"images\" is [5, 2, 3, 4] Double"));
  CHECK_THAT(problem({{"images", images[0]}, {"labels", labels}}),
             ContainsSubstring("\"images\" is [2, 3, 4] Float"));
  CHECK_THAT(problem({{"images", images.narrow(0, 0, 0)}, {"labels", labels.narrow(0, 0, 0)}}),
             ContainsSubstring("not empty"));
  CHECK_THAT(problem({{"images", images}, {"labels", labels.to(at::kInt)}}),
             ContainsSubstring("\"labels\" is [5] Int"));
  CHECK_THAT(problem({{"images", images}, {"labels", labels.unsqueeze(0)}}),
             ContainsSubstring("\"labels\" is [1, 5] Long"));
  CHECK_THAT(problem({{"images", images}, {"labels", labels.narrow(0, 0, 4)}}),
             ContainsSubstring("5 \"images\" but 4 \"labels\""));
  CHECK_THAT(problem({{"images", images}, {"labels", labels - 1}}),
             ContainsSubstring("label -1 at index 0"));
  CHECK_THAT(problem({{"images", images}, {"labels", labels + INT64_MAX}}),
             ContainsSubstring("\"labels\" has the label"));
  CHECK_THAT(problem({{"images", images}, {"labels", labels}, {"test_labels", labels}}),
             ContainsSubstring("no tensor \"test_images\""));
  CHECK_THAT(problem({{"images", images},
                      {"labels", labels},
                      {"test_images", at::zeros({5, 1, 3, 4})},
                      {"test_labels", labels}}),
             ContainsSubstring("\"test_images\" is [5, 1, 3, 4]"));
}

TEST_CASE("a batch is cut into views of tensor_split's sizes") {
  const batch whole{at::arange(10 * 3).to(at::kFloat).reshape({10, 1, 3, 1}), at::arange(10)};
  const auto parts = split_batch(whole, 3).value();
  REQUIRE(parts.size() == 3);
  CHECK(parts[0].inputs.size(0) == 4);
  CHECK(parts[2].labels.size(0) == 3);
  CHECK(at::equal(parts[1].inputs, whole.inputs.narrow(0, 4, 3)));
  CHECK(parts[1].inputs.data_ptr() == whole.inputs[4].data_ptr());
  CHECK(parts[2].labels[0].item<int>() == 7);
  CHECK_THAT(error_of(split_batch(whole, 11)).text,
             ContainsSubstring("10 samples") && ContainsSubstring("11"));
}
