#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>

#include <unistd.h>

#include <algorithm>
#include <array>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <functional>
#include <latch>
#include <mutex>
#include <random>
#include <thread>

#include "engine/base/random.hpp"
#include "engine/data/dataset.hpp"
#include "engine/data/image/image.hpp"
#include "tests/refusal.hpp"
#include "tests/unit/engine/data/image_writer.hpp"
#include "tests/unit/lowered_limit.hpp"
#include "tests/unit/scratch_folder.hpp"

namespace {

namespace fs = std::filesystem;
using namespace troupe;
using namespace troupe::engine;
using namespace troupe::testing;
using Catch::Matchers::ContainsSubstring;
using numbers = std::vector<std::int64_t>;

constexpr colour teal{40, 160, 200};
constexpr colour ash{130, 130, 130};

dataset_options options_for(const scratch_folder& folder) {
  dataset_options options;
  options.source = "folder:" + folder.path().string();
  options.image_size = 16;
  options.threads = 2;
  return options;
}

numbers first(std::int64_t count) {
  numbers indices;
  for (std::int64_t i = 0; i < count; ++i) indices.push_back(i);
  return indices;
}

std::span<const std::byte> as_bytes(const std::string& text) {
  return std::as_bytes(std::span(text));
}

// How far the decoded pixels are from one colour, at most.
int error_of(const std::string& file, colour fill, std::int64_t side = 64) {
  const auto image = decode_image(as_bytes(file), side).value();
  REQUIRE(image.pixels.size() == static_cast<std::size_t>(image.width * image.height * 3));
  int worst = 0;
  for (std::size_t i = 0; i < image.pixels.size(); ++i)
    worst = std::max(worst, std::abs(image.pixels[i] - fill[i % 3]));
  return worst;
}

std::string problem_of(const std::string& file) {
  return error_of(decode_image(as_bytes(file), 64), errc::bad_data).text;
}

}  // namespace

TEST_CASE("every kind of JPEG becomes RGB") {
  for (const bool progressive : {false, true}) {
    INFO("progressive " << progressive);
    CHECK(error_of(jpeg_bytes(teal, {.progressive = progressive}), teal) <= 3);
    CHECK(error_of(jpeg_bytes(ash, {.colours = jpeg_kind::grey, .progressive = progressive}),
                   ash) <= 2);
    CHECK(error_of(jpeg_bytes(teal, {.colours = jpeg_kind::cmyk, .progressive = progressive}),
                   teal) <= 4);
    CHECK(error_of(jpeg_bytes(teal, {.colours = jpeg_kind::adobe_cmyk}), teal) <= 4);
    CHECK(error_of(jpeg_bytes(teal, {.colours = jpeg_kind::ycck}), teal) <= 5);
  }
}

TEST_CASE("every kind of PNG becomes RGB") {
  for (const bool interlaced : {false, true}) {
    INFO("interlaced " << interlaced);
    CHECK(error_of(png_bytes(teal, {.interlaced = interlaced}), teal) == 0);
    CHECK(error_of(png_bytes(teal, {.bits = 16, .interlaced = interlaced}), teal) == 0);
    CHECK(error_of(png_bytes(teal, {.colours = png_kind::rgba, .interlaced = interlaced}), teal) ==
          0);
    CHECK(error_of(png_bytes(teal, {.colours = png_kind::rgba, .bits = 16}), teal) == 0);
    CHECK(error_of(png_bytes(ash, {.colours = png_kind::grey, .interlaced = interlaced}), ash) ==
          0);
    CHECK(error_of(png_bytes(ash, {.colours = png_kind::grey, .bits = 16}), ash) == 0);
    CHECK(error_of(png_bytes(ash, {.colours = png_kind::grey, .bits = 1}), {255, 255, 255}) == 0);
    CHECK(error_of(png_bytes(teal, {.colours = png_kind::palette, .interlaced = interlaced}),
                   teal) == 0);
  }
}

TEST_CASE("a JPEG that is much too large is decoded smaller") {
  const auto file = jpeg_bytes(teal, {.width = 1001, .height = 800});
  const auto decoded_width = [&file](std::int64_t side) {
    return decode_image(as_bytes(file), side).value().width;
  };
  CHECK(decoded_width(224) == 1001);  // half of 800 would be less than twice 224
  CHECK(decoded_width(200) == 501);
  CHECK(decoded_width(100) == 251);
  CHECK(decoded_width(10) == 126);
  CHECK(error_of(file, teal, 10) <= 3);
}

TEST_CASE("an image that lacks pixels is refused") {
  for (const auto& whole :
       {jpeg_bytes(teal), jpeg_bytes(teal, {.progressive = true}), png_bytes(teal),
        jpeg_bytes(teal, {.colours = jpeg_kind::cmyk}), png_bytes(teal, {.interlaced = true})}) {
    for (std::size_t size = 0; size < whole.size() - 2; size += 1 + whole.size() / 97)
      CHECK_FALSE(problem_of(whole.substr(0, size)).empty());
    CHECK(error_of(whole, teal) <= 4);
  }
}

TEST_CASE("files that are no images are refused with a reason") {
  CHECK(problem_of("") == "it is empty");
  CHECK_THAT(problem_of("GIF89a"), ContainsSubstring("neither a JPEG nor a PNG"));
  CHECK_FALSE(problem_of("\xff\xd8\xff\xe0 and no more").empty());
  CHECK_FALSE(problem_of(std::string("\x89PNG\r\n\x1a\n\0\0\0\0", 12)).empty());
}

TEST_CASE("an image of absurd size is refused before it is decoded") {
  auto file = jpeg_bytes(teal);
  const auto frame = file.find(std::string("\xff\xc0", 2));
  REQUIRE(frame != file.npos);
  file[frame + 5] = file[frame + 7] = '\xff';  // 65,280 + ... pixels a side
  CHECK_THAT(problem_of(file), ContainsSubstring("allowed are"));
  CHECK_FALSE(check_image_size(20000, 20000));
  CHECK_FALSE(check_image_size(0, 1));
  CHECK_FALSE(check_image_size(32769, 1));
  CHECK(check_image_size(32768, 4096));
}

TEST_CASE("random damage to an image never does more than an error") {
  const std::uint64_t seed = std::random_device{}();
  INFO("seed " << seed);
  splitmix64 random(seed);
  const std::array files{jpeg_bytes(teal),
                         jpeg_bytes(teal, {.progressive = true}),
                         jpeg_bytes(teal, {.colours = jpeg_kind::ycck}),
                         png_bytes(teal),
                         png_bytes(teal, {.colours = png_kind::palette}),
                         png_bytes(teal, {.colours = png_kind::rgba, .bits = 16})};
  for (int round = 0; round < 3000; ++round) {
    auto file = files[random.below(files.size())];
    for (auto left = 1 + random.below(6); left > 0; --left)
      file[random.below(file.size())] = static_cast<char>(random.next());
    const auto image = decode_image(as_bytes(file), 8);
    if (image)
      REQUIRE(image->pixels.size() == static_cast<std::size_t>(image->width * image->height * 3));
    else
      REQUIRE_FALSE(image.error().text.empty());
  }
}

TEST_CASE("a tree with splits gives its classes sorted, and normalised images") {
  const scratch_folder folder;
  write_bytes(folder / "train/zebra/1.jpg", jpeg_bytes(teal));
  write_bytes(folder / "train/ant/b.PNG", png_bytes(teal, {.width = 9, .height = 31}));
  write_bytes(folder / "train/ant/a.JPEG", png_bytes(teal));  // a PNG under another name
  write_bytes(folder / "train/ant/notes.txt", "no image");
  write_bytes(folder / "train/.hidden/1.jpg", "no class");
  write_bytes(folder / "val/zebra/1.jpg", jpeg_bytes(ash, {.colours = jpeg_kind::grey}));
  const auto data = open_dataset(options_for(folder)).value();
  CHECK(data->size(split::train) == 3);
  CHECK(data->size(split::test) == 1);
  CHECK(data->classes() == 2);
  CHECK(data->sample_shape() == numbers{3, 16, 16});
  const auto read = data->read(split::train, numbers{2, 0, 1}).value();
  CHECK(read.inputs.sizes() == numbers{3, 3, 16, 16});
  CHECK(read.labels[0].item<int>() == 1);
  CHECK(read.labels[1].item<int>() == 0);
  CHECK(read.labels[2].item<int>() == 0);
  constexpr std::array mean{0.485, 0.456, 0.406};
  constexpr std::array deviation{0.229, 0.224, 0.225};
  for (std::size_t channel = 0; channel < 3; ++channel) {
    const auto expected = (teal[channel] / 255.0 - mean[channel]) / deviation[channel];
    const auto plane = read.inputs.select(1, static_cast<std::int64_t>(channel));
    CHECK((plane - expected).abs().max().item<double>() < 0.06);
  }
  CHECK(data->read(split::test, first(1)).value().labels[0].item<int>() == 1);
  CHECK(data->skipped() == 0);
}

TEST_CASE("without splits every tenth file of a class is a test image") {
  const scratch_folder folder;
  for (int i = 10; i < 35; ++i) {
    write_bytes(folder / ("many/" + std::to_string(i) + ".png"),
                png_bytes({static_cast<std::uint8_t>(i), 0, 0}));
    if (i < 19) write_bytes(folder / ("few/" + std::to_string(i) + ".png"), png_bytes(teal));
  }
  const auto data = open_dataset(options_for(folder)).value();
  CHECK(data->size(split::train) == 23 + 9);
  CHECK(data->size(split::test) == 2);
  const auto test = data->read(split::test, first(2)).value();
  for (std::int64_t i = 0; i < 2; ++i) {
    CHECK(test.labels[i].item<int>() == 1);
    const auto red = test.inputs[i][0][8][8].item<double>() * 0.229 + 0.485;
    CHECK(std::abs(red * 255 - static_cast<double>(i == 0 ? 19 : 29)) < 1e-3);
  }
}

TEST_CASE("an unreadable image is named once, left out and counted each time") {
  const scratch_folder folder;
  const auto good = jpeg_bytes(teal);
  write_bytes(folder / "train/a/0.jpg", good.substr(0, good.size() / 2));
  write_bytes(folder / "train/a/1.jpg", good);
  write_bytes(folder / "train/a/2.jpg", "");
  write_bytes(folder / "train/b/3.png", png_bytes(teal));
  auto options = options_for(folder);
  std::vector<std::string> warnings;
  options.warn = [&warnings](std::string_view text) { warnings.emplace_back(text); };
  const auto data = open_dataset(options).value();
  for (std::uint64_t epoch = 1; epoch <= 2; ++epoch) {
    const auto read = data->read(split::train, first(4)).value();
    CHECK(read.inputs.sizes() == numbers{2, 3, 16, 16});
    CHECK(read.labels[0].item<int>() == 0);
    CHECK(read.labels[1].item<int>() == 1);
    CHECK((read.inputs[0] - read.inputs[1]).abs().max().item<double>() < 0.06);
    CHECK(data->skipped() == 2 * epoch);
  }
  REQUIRE(warnings.size() == 2);
  CHECK_THAT(warnings[0], ContainsSubstring("train/a/0.jpg"));
  CHECK_THAT(warnings[1], ContainsSubstring("train/a/2.jpg") && ContainsSubstring("empty"));
  CHECK(data->read(split::train, numbers{0, 2}).value().inputs.size(0) == 0);
  CHECK(data->left_out().value() == left_out_samples{{0, 2}, {}});
  const auto some = data->read_partly(split::train, numbers{2, 1, 0}).value();
  CHECK(some.readable.inputs.size(0) == 1);
  CHECK(some.left_out == numbers{2, 0});
  CHECK(data->name_of(split::train, 2) == (folder / "train/a/2.jpg").string());
}

TEST_CASE("a folder's digest is that of its files' names, wherever and whenever written") {
  const auto digest_with = [](const std::function<void(const fs::path&)>& change) {
    const scratch_folder folder;
    for (const auto* file : {"train/a/1.jpg", "train/a/2.jpg", "train/b/1.jpg", "val/a/1.jpg"})
      write_bytes(folder / file, "bytes");
    change(folder.path());
    return open_dataset(options_for(folder)).value()->digest().value();
  };
  const auto before = digest_with([](const fs::path&) {});
  CHECK(before.size() == 32);
  CHECK(digest_with([](const fs::path& root) {
          fs::last_write_time(root / "train/a/1.jpg", fs::file_time_type{});
        }) == before);
  CHECK(digest_with([](const fs::path& root) { write_bytes(root / "train/b/2.jpg", "bytes"); }) !=
        before);
  CHECK(digest_with([](const fs::path& root) { write_bytes(root / "val/b/1.jpg", "bytes"); }) !=
        before);
  CHECK(digest_with([](const fs::path& root) { fs::remove(root / "train/a/2.jpg"); }) != before);
  CHECK(digest_with([](const fs::path& root) {  // which could not be read, and was mended
          write_bytes(root / "train/a/1.jpg", "other one");
        }) == before);
  CHECK(digest_with([](const fs::path& root) {
          fs::rename(root / "train/a/2.jpg", root / "train/b/2.jpg");
        }) != before);
}

TEST_CASE("in strict mode an unreadable image is an error that names it") {
  const scratch_folder folder;
  write_bytes(folder / "train/a/0.jpg", jpeg_bytes(teal));
  write_bytes(folder / "train/a/1.jpg", "\xff\xd8\xff\xe0");
  auto options = options_for(folder);
  options.strict = true;
  const auto data = open_dataset(options).value();
  CHECK(data->read(split::train, first(1)));
  check_refused(data->read(split::train, first(2)), errc::bad_data, "train/a/1.jpg");
  std::filesystem::remove(folder / "train/a/0.jpg");
  CHECK_THAT(data->read(split::train, first(1)).error().text,
             ContainsSubstring("0.jpg") && ContainsSubstring("No such file"));
}

TEST_CASE("an image that no descriptor is left for is an error, and is not left out") {
  const scratch_folder folder;
  write_bytes(folder / "train/a/0.jpg", jpeg_bytes(teal));
  const auto data = open_dataset(options_for(folder)).value();
  const auto refused =
      tests::under_limit(RLIMIT_NOFILE, 3, [&] { return data->read(split::train, first(1)); });
  CHECK(error_of(refused, errc::io_failed).text ==
        (folder / "train/a/0.jpg").string() +
            " cannot be used: Too many open files; raise the limit on open files (ulimit -n)");
  CHECK(data->skipped() == 0);
  CHECK(data->left_out().value() == left_out_samples{});
  CHECK(data->read(split::train, first(1)).value().inputs.size(0) == 1);
}

TEST_CASE("several threads may read a folder at once") {
  const scratch_folder folder;
  for (int i = 0; i < 12; ++i)
    write_bytes(folder / ("train/a/" + std::to_string(i) + ".jpg"),
                jpeg_bytes({static_cast<std::uint8_t>(20 * i), 90, 90}));
  const auto data = open_dataset(options_for(folder)).value();
  const auto alone = data->read(split::train, first(12)).value();
  std::array<double, 4> differences{};
  {
    std::latch start(4);
    std::vector<std::jthread> readers;
    readers.reserve(differences.size());
    for (auto& difference : differences)
      readers.emplace_back([&start, &data, &alone, &difference] {
        start.arrive_and_wait();
        for (int round = 0; round < 5; ++round) {
          const auto read = data->read(split::train, first(12));
          difference += read ? (read->inputs - alone.inputs).abs().max().item<double>() : 1;
        }
      });
  }
  for (const double difference : differences) CHECK(difference == 0);
}

TEST_CASE("a tree that is no data set is refused by name") {
  const scratch_folder folder;
  const auto refusal = [&folder] {
    const error data = error_of(open_dataset(options_for(folder)), errc::bad_data);
    CHECK_THAT(data.text, ContainsSubstring(folder.path().string()));
    return data.text;
  };
  CHECK_THAT(refusal(), ContainsSubstring("holds no folders"));
  std::filesystem::create_directories(folder / "train/a");
  CHECK_THAT(refusal(), ContainsSubstring("train/a holds no .jpg"));
  write_bytes(folder / "train/a/0.jpg", jpeg_bytes(teal));
  CHECK(open_dataset(options_for(folder)).value()->size(split::test) == 0);
  write_bytes(folder / "test/b/0.jpg", jpeg_bytes(teal));
  CHECK_THAT(refusal(), ContainsSubstring("test/b") && ContainsSubstring("no class \"b\""));
  auto options = options_for(folder);
  options.source += "/none";
  CHECK_THAT(open_dataset(options).error().text, ContainsSubstring("is not a folder"));
}

TEST_CASE("a folder that the system does not open is told with what to do") {
  const scratch_folder folder;
  write_bytes(folder / "a/0.jpg", jpeg_bytes(teal));
  std::filesystem::permissions(folder.path(), std::filesystem::perms(0755));
  const auto text = [&folder] { return open_dataset(options_for(folder)).error().text; };
  SECTION("for want of rights, which root never lacks") {
    std::filesystem::permissions(folder / "a", std::filesystem::perms::none);
    constexpr uid_t nobody = 65534;
    const auto before = geteuid();
    if (before == 0) REQUIRE(seteuid(nobody) == 0);
    const auto refused = text();
    if (before == 0) REQUIRE(seteuid(before) == 0);
    std::filesystem::permissions(folder / "a", std::filesystem::perms(0755));
    CHECK(refused == "folder:" + folder.path().string() + ": " + (folder / "a").string() +
                         " cannot be read: Permission denied; give this user the right to read it");
  }
  SECTION("for want of descriptors") {
    CHECK(tests::under_limit(RLIMIT_NOFILE, 3, text) ==
          "folder:" + folder.path().string() + ": " + folder.path().string() +
              " cannot be read: Too many open files; raise the limit on open files "
              "(ulimit -n)");
  }
}
