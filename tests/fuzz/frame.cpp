// The decoder of frame headers: what it takes can be encoded again and means the same.
#include <vector>

#include "messages/codec/codec.hpp"
#include "tests/fuzz/target.hpp"

namespace troupe::fuzz {
namespace {

using namespace messages;

frame rich() {
  frame out{.kind = frame_kind::request, .sender = 4, .target = 5, .request_id = 6};
  value::list nested;
  for (int i = 0; i < 6; ++i) nested = {value{nested}, value{std::int64_t{i}}};
  out.body.push_back({"everything",
                      {value{}, value{std::int64_t{-7}}, value{2.5}, value{std::string("text")},
                       value{value::tensor_index{1}},
                       value{actor_ref{"stage-1", "127.0.0.1:80", 12}}, value{nested}}});
  out.tensors.push_back({{dtype::f32, {2, 3, 4}, {12, 4, 1}, {}}, {nullptr, 96, nullptr}});
  out.tensors.push_back({{dtype::bf16, {2, 8, 2, 2}, {32, 1, 16, 8}, {}}, {nullptr, 128, nullptr}});
  out.tensors.push_back({{dtype::u8, {0, 7}, {7, 1}, {}}, {nullptr, 0, nullptr}});
  return out;
}

/// A frame with a short header.
frame plain() {
  frame out{.kind = frame_kind::response, .sender = 7, .target = 8, .request_id = 9};
  out.body.push_back({"credit", {value{std::int64_t{-7}}, value{2.5}, value{}}});
  return out;
}

std::string encoded(frame message) {
  static std::byte storage[128];
  for (wire_tensor& tensor : message.tensors) tensor.bytes.data = storage;
  const auto header = encode(message);
  require(header.has_value(), "a seed can be encoded");
  return text_of(*header);
}

bool same(const frame& a, const frame& b) {
  const auto descriptors = [](const wire_tensor& x, const wire_tensor& y) {
    return x.descriptor == y.descriptor && x.bytes.bytes == y.bytes.bytes;
  };
  return a.kind == b.kind && a.lane == b.lane && a.sender == b.sender && a.target == b.target &&
         a.request_id == b.request_id && a.deadline_us == b.deadline_us &&
         a.body.size() == b.body.size() && std::ranges::equal(a.tensors, b.tensors, descriptors);
}

}  // namespace

std::vector<std::string> seeds() {
  return {encoded({}), encoded({.kind = frame_kind::heartbeat, .lane = lane::control}),
          encoded(plain()), encoded(rich())};
}

void run(std::span<const std::byte> input) {
  const std::vector<std::byte> aligned(input.begin(), input.end());
  auto message = decode(aligned);
  if (!message) return require(!message.error().text.empty(), "a refusal says why");
  // Only the descriptors are read: the bytes are never touched.
  for (wire_tensor& tensor : message->tensors)
    tensor.bytes.data = const_cast<std::byte*>(aligned.data());
  const auto again = encode(*message);
  // A header may be small on the wire and large when each pointer has its own target.
  if (!again) return require(again.error().code == errc::bad_frame, "too large to be sent");
  const auto decoded = decode(*again);
  require(decoded && same(*decoded, *message), "what was decoded survives another trip");
}

}  // namespace troupe::fuzz
