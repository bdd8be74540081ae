// Reassembly: any heads, loans and chunks in any order stay within their memory, and what comes out
// whole is in order.
#include <unistd.h>

#include <cstring>
#include <memory>
#include <optional>
#include <vector>

#include "messages/link/frames/bundle.hpp"
#include "messages/link/frames/outbox.hpp"
#include "messages/link/frames/reassembly.hpp"
#include "tests/fuzz/target.hpp"
#include "tests/unit/messages/own_view.hpp"

namespace troupe::fuzz {
namespace {

using namespace messages;

constexpr std::uint64_t chunk = wire::least_chunk_bytes;

// A script: 0, head prefix, two bytes of length, data; 1, chunk prefix; or 2, bundle prefix, two
// bytes of length, data.
template <class T>
std::string raw(const T& value) {
  return text_of(std::as_bytes(std::span(&value, 1)));
}

/// Of this process, which lends to itself.
const std::shared_ptr<shared_memory>& memory() {
  static const auto made = shared_memory::make().value();
  return made;
}

/// As a peer sees it.
const std::shared_ptr<borrowed_memory>& borrowed() {
  static const auto opened = own_view(*memory());
  return opened;
}

std::string raw(const outbox::piece& head) {
  return '\0' + raw(head.frame->prefix) + raw(static_cast<std::uint16_t>(head.bytes)) +
         text_of({head.data, head.bytes});
}

/// Two frames, of a lent tensor each, and one of a copied and a lent one.
std::string lent() {
  outbox out(std::uint64_t{1} << 40);
  lent_tensors lends(memory(), std::make_shared<descriptor>(hold_process(getpid())));
  const payload block = memory()->allocate(chunk);
  const tensor_descriptor floats{dtype::f32, {static_cast<std::int64_t>(chunk / 4)}, {1}, {}};
  std::string whole;
  for (const std::size_t tensors : {1, 1, 2}) {
    frame message;
    message.body.push_back({"number", {value{std::int64_t{1}}}});
    message.tensors.assign(tensors, {floats, block});
    if (tensors > 1) message.tensors.front().descriptor.type = dtype::i32;
    auto pieces = cut(std::move(message), {}, 8192, chunk).value();
    lend_large(*pieces, lends);
    out.push(std::move(pieces));
  }
  while (const auto piece = out.next())
    whole += piece->head ? raw(*piece) : '\1' + raw(piece->chunk);
  return whole;
}

std::string script(bool backwards) {
  outbox out(std::uint64_t{1} << 40);
  const auto storage = std::make_shared<std::vector<std::byte>>(3 * chunk);
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{100}, 2 * chunk + 8}) {
    frame message;
    message.body.push_back({"number", {value{std::int64_t{1}}}});
    message.tensors.push_back({{dtype::u8, {static_cast<std::int64_t>(bytes)}, {1}, {}},
                               {storage->data(), bytes, storage}});
    out.push(cut(std::move(message), {}, 8192, chunk).value());
  }
  std::vector<std::string> pieces;
  while (const auto piece = out.next()) {
    pieces.push_back(piece->head ? raw(*piece) : '\1' + raw(piece->chunk));
  }
  if (backwards) std::ranges::reverse(pieces);
  std::string whole;
  for (const std::string& piece : pieces) whole += piece;
  return whole;
}

std::string bundled() {
  outbox out(std::uint64_t{1} << 40);
  bundle all;
  for (int i = 0; i < 3; ++i) {
    frame message;
    message.body.push_back({"number", {value{std::int64_t{i}}}});
    out.push(cut(std::move(message), {}, 8192, chunk).value());
    all.add(out.next().value());
  }
  const std::vector<std::byte> data = all.data();
  return '\2' + raw(all.prefix()) + raw(static_cast<std::uint16_t>(data.size())) + text_of(data);
}

template <class Prefix>
Prefix read_prefix(reader& in) {
  Prefix out;
  const auto bytes = in.bytes(sizeof(out));
  std::memcpy(&out, bytes.data(), bytes.size());
  return out;
}

limits small() {
  limits bounds;
  bounds.tensor_bytes = 8 * chunk;
  bounds.held_bytes = 4096;
  return bounds;
}

/// False when the peer would be cut off.
template <class T>
bool goes_on(const result<T>& taken) {
  return taken || taken.error().code == errc::stale;
}

bool feed(reassembly& to, reader& in) {
  const std::size_t kind = in.number() % 3;
  if (kind == 0) {
    const auto prefix = read_prefix<wire::frame_prefix>(in);
    return goes_on(to.add_head(prefix, in.bytes(in.number(2))));
  }
  if (kind == 2) {
    const auto prefix = read_prefix<wire::bundle_prefix>(in);
    const auto data = in.bytes(in.number(2));
    const auto frames = unbundle(prefix, data);
    return frames && std::ranges::all_of(*frames, [&](const bundled_frame& one) {
             return goes_on(to.add_head(one.prefix, one.data));
           });
  }
  const auto piece = read_prefix<wire::chunk_prefix>(in);
  const auto announced = to.announce(piece, piece.bytes);
  if (!announced) return goes_on(announced);
  if (const auto* target = std::get_if<reassembly::destination>(&*announced)) {
    std::memset(target->data, 1, piece.bytes);  // within bounds, or ASan tells
    to.done(piece);
  }
  return true;
}

/// Whether a tensor that is lent lies in the lender's memory. Its bytes are not read: that would
/// fill the memory's holes.
bool is_within(const payload& bytes) {
  const std::byte* const begin = borrowed()->at(0);
  return bytes.data >= begin && bytes.bytes <= borrowed()->bytes() &&
         static_cast<std::uint64_t>(bytes.data - begin) <= borrowed()->bytes() - bytes.bytes;
}

}  // namespace

std::vector<std::string> seeds() {
  return {script(false), script(true), bundled(), lent()};
}

void run(std::span<const std::byte> input) {
  static buffer_pool pool(1 << 22);
  std::uint64_t returned = 0;
  const auto desk = std::make_shared<return_desk>([&](peer_id, std::uint64_t) { ++returned; });
  std::uint64_t borrows = 0;
  reassembly to(small(), pool);
  to.borrow_from({borrowed(), desk, peer_id{1}});
  reader in(input);
  std::uint64_t released = 0;
  while (!in.empty() && feed(to, in)) {
    while (const auto message = to.pop()) {
      ++released;
      for (const wire_tensor& tensor : message->tensors) {
        require(tensor.bytes.bytes == 0 || tensor.bytes.data != nullptr, "a tensor has its bytes");
        if (!tensor.bytes.read_only) continue;
        ++borrows;
        require(is_within(tensor.bytes), "a loan is within the lender's memory");
        require(tensor.descriptor.type != dtype::i32, "indices are not lent");
      }
    }
  }
  require(borrows <= returned, "each loan is handed back");
  require(released <= to.released(lane::control) + to.released(lane::data), "each comes out once");
}

}  // namespace troupe::fuzz
