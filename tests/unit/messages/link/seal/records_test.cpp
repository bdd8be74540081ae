// The records that pass through a door: what opens, and what does not.
#include "messages/link/seal/records.hpp"

#include <algorithm>
#include <array>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <cstring>
#include <optional>
#include <vector>

#include "messages/link/cluster_secret.hpp"

namespace troupe::messages {
namespace {

using record::cipher;
using record::kind;
using bytes = std::vector<std::byte>;

connection_keys::key fresh_key() {
  connection_keys::key out;
  fill_random(out);
  return out;
}

bytes some_bytes(std::size_t count) {
  bytes out(count);
  for (std::size_t i = 0; i < count; ++i) out[i] = static_cast<std::byte>(i * 7 + (i >> 8));
  return out;
}

bytes seal(cipher& by, const bytes& content, kind what = kind::last) {
  bytes out(content.size() + record::overhead_bytes);
  by.seal(what, content, out.data());
  return out;
}

/// What is in a record; nullopt: it does not open.
std::optional<bytes> opened_by(cipher& by, const bytes& whole) {
  bytes out(whole.size());
  if (!by.open(whole, out.data())) return std::nullopt;
  out.resize(whole.size() - record::overhead_bytes);
  return out;
}

/// The test runs with one and then with the other.
wire::cipher_kind each_cipher() {
  return GENERATE(wire::cipher_kind::chacha20_poly1305, wire::cipher_kind::aes_256_gcm);
}

/// One direction of a connection.
struct way {
  explicit way(wire::cipher_kind which) : algorithm(which) {}

  wire::cipher_kind algorithm;
  connection_keys::key key = fresh_key();
  cipher from{key, cipher::use::seals, algorithm};
  cipher to{key, cipher::use::opens, algorithm};
};

}  // namespace

TEST_CASE("records open in the order in which they were sealed, whatever their size") {
  const auto algorithm = each_cipher();
  way one(algorithm);
  for (const std::size_t count : {std::size_t{0}, std::size_t{1}, std::size_t{15}, std::size_t{16},
                                  std::size_t{17}, record::most_bytes}) {
    CAPTURE(count);
    const bytes content = some_bytes(count);
    const bytes whole = seal(one.from, content, count % 2 == 0 ? kind::more : kind::body);
    const auto head = record::read_head(std::span(whole).first<record::head_bytes>()).value();
    CHECK(head.bytes == count);
    CHECK(head.what == (count % 2 == 0 ? kind::more : kind::body));
    CHECK(opened_by(one.to, whole) == content);
  }
}

TEST_CASE("a record of several parts is that of all of them in one piece") {
  const auto algorithm = each_cipher();
  const connection_keys::key key = fresh_key();
  cipher apart(key, cipher::use::seals, algorithm);
  cipher together(key, cipher::use::seals, algorithm);
  const bytes content = some_bytes(1000);
  const std::span<const std::byte> all = content;
  for (const std::size_t cut : {std::size_t{0}, std::size_t{4}, std::size_t{100}}) {
    CAPTURE(cut);
    const std::array parts = {all.first(cut), all.subspan(cut, 60), all.subspan(cut + 60)};
    bytes whole(content.size() + record::overhead_bytes);
    CHECK(apart.seal(kind::last, parts, whole.data()) == whole.size());
    CHECK(whole == seal(together, content));
  }
}

TEST_CASE("a record hides its content, and the same one twice") {
  const auto algorithm = each_cipher();
  way one(algorithm);
  const bytes content(256, std::byte{'a'});
  const bytes first = seal(one.from, content);
  const bytes second = seal(one.from, content);
  CHECK(first != second);
  for (const bytes& each : {first, second})
    CHECK(std::ranges::search(each, bytes(4, std::byte{'a'})).empty());
}

TEST_CASE("a record of which one bit was changed does not open") {
  const auto algorithm = each_cipher();
  const connection_keys::key key = fresh_key();
  cipher from(key, cipher::use::seals, algorithm);
  const bytes whole = seal(from, some_bytes(40));
  for (std::size_t bit = 0; bit < 8 * whole.size(); ++bit) {
    bytes changed = whole;
    changed[bit / 8] ^= std::byte{1} << (bit % 8);
    cipher to(key, cipher::use::opens, algorithm);
    CAPTURE(bit);
    CHECK_FALSE(opened_by(to, changed));
  }
}

TEST_CASE("a record that was cut short or grew does not open") {
  const auto algorithm = each_cipher();
  const connection_keys::key key = fresh_key();
  cipher from(key, cipher::use::seals, algorithm);
  const bytes whole = seal(from, some_bytes(40));
  for (std::size_t count = 0; count < whole.size(); ++count) {
    cipher to(key, cipher::use::opens, algorithm);
    CAPTURE(count);
    CHECK_FALSE(opened_by(to, bytes(whole.begin(), whole.begin() + static_cast<long>(count))));
  }
  bytes longer = whole;
  longer.push_back(std::byte{0});
  cipher to(key, cipher::use::opens, algorithm);
  CHECK_FALSE(opened_by(to, longer));
}

TEST_CASE("a record opens only with its own key and in its own direction") {
  const auto algorithm = each_cipher();
  way there(algorithm);
  way back(algorithm);
  const bytes whole = seal(there.from, some_bytes(40));
  CHECK_FALSE(opened_by(back.to, whole));  // sent back
  CHECK(opened_by(there.to, whole));
}

TEST_CASE("a record opens only in its place") {
  const auto algorithm = each_cipher();
  way one(algorithm);
  const bytes content = some_bytes(40);
  std::vector<bytes> sealed;
  for (int i = 0; i < 3; ++i) sealed.push_back(seal(one.from, content));
  SECTION("repeated") {
    CHECK(opened_by(one.to, sealed[0]));
    CHECK_FALSE(opened_by(one.to, sealed[0]));
  }
  SECTION("left out") {
    CHECK(opened_by(one.to, sealed[0]));
    CHECK_FALSE(opened_by(one.to, sealed[2]));
  }
  SECTION("moved") CHECK_FALSE(opened_by(one.to, sealed[1]));
  SECTION("in order") {
    for (const bytes& each : sealed) CHECK(opened_by(one.to, each) == content);
  }
}

TEST_CASE("a key is replaced in time, on both sides at the same record") {
  const auto algorithm = each_cipher();
  way one(algorithm);
  const bytes content = some_bytes(1);
  bytes opened(1);
  const bytes first_of_all = seal(one.from, content);
  REQUIRE(opened_by(one.to, first_of_all));
  for (std::uint64_t i = 1; i < record::records_per_key; ++i) {
    const bytes whole = seal(one.from, content);
    if (!one.to.open(whole, opened.data())) FAIL("record " << i << " does not open");
  }
  // Number 0 again: only the key tells it from the first.
  const bytes first_of_next = seal(one.from, content);
  CHECK(first_of_next != first_of_all);
  cipher old(one.key, cipher::use::opens, algorithm);
  CHECK_FALSE(opened_by(old, first_of_next));
  CHECK_FALSE(opened_by(one.to, first_of_all));
  // What did not open has taken its number; the next one still opens.
  CHECK(opened_by(one.to, seal(one.from, content)) == content);
}

TEST_CASE("what begins no record is told before anything is opened") {
  const auto head_of = [](std::uint32_t word) {
    std::array<std::byte, record::head_bytes> out;
    std::memcpy(out.data(), &word, sizeof(word));
    return record::read_head(out);
  };
  const std::uint32_t last = std::uint32_t{static_cast<std::uint8_t>(kind::last)} << 24;
  CHECK(head_of(last | record::most_bytes));
  CHECK_FALSE(head_of(last | (record::most_bytes + 1)));
  CHECK_FALSE(head_of(last | 0xFFFFFF));
  for (std::uint32_t each = 0; each < 256; ++each) {
    CAPTURE(each);
    CHECK(head_of(each << 24).has_value() == (each >= 1 && each <= 3));
  }
}

}  // namespace troupe::messages
