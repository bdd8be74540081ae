#include "messages/codec/codec.hpp"

#include <capnp/message.h>
#include <capnp/serialize.h>
#include <fmt/format.h>
#include <kj/exception.h>

#include "frame.capnp.h"
#include "messages/codec/decoder.hpp"
#include "messages/codec/encoder.hpp"
#include "messages/codec/short_header.hpp"

namespace troupe::messages {

result<encoded_header> encode(const frame& message, const limits& bounds) {
  if (auto brief = encode_short(message, bounds)) return std::move(*brief);
  const result<std::size_t> words = header_words(message, bounds);
  if (!words) return tl::unexpected(words.error());
  // Zeroed memory of just the right size: Cap'n Proto builds in it and never needs a second
  // segment. operator new aligns it for any word.
  encoded_header out(*words * sizeof(capnp::word));
  try {
    capnp::FlatMessageBuilder builder(
        kj::arrayPtr(reinterpret_cast<capnp::word*>(out.data()), *words));
    write_frame(message, builder.initRoot<wire::Frame>());
    out.resize(builder.getSegmentsForOutput()[0].size() * sizeof(capnp::word));
  } catch (const kj::Exception& problem) {
    return fail(errc::bad_frame,
                fmt::format("a frame could not be encoded: {}", problem.getDescription().cStr()));
  }
  return out;
}

result<frame> decode(std::span<const std::byte> header, const limits& bounds) {
  if (header.size() > bounds.header_bytes)
    return fail(errc::bad_frame, fmt::format("a header of {} bytes, limit header_bytes is {}",
                                             header.size(), bounds.header_bytes));
  if (header.empty() || header.size() % sizeof(capnp::word) != 0)
    return fail(errc::bad_frame,
                fmt::format("a header of {} bytes is not a whole number of words", header.size()));
  if (is_short(header)) return decode_short(header, bounds);
  if (reinterpret_cast<std::uintptr_t>(header.data()) % alignof(capnp::word) != 0)
    return fail(errc::bad_frame, "a header is not aligned to 8 bytes");
  const std::size_t words = header.size() / sizeof(capnp::word);
  const kj::ArrayPtr<const capnp::word> segment(reinterpret_cast<const capnp::word*>(header.data()),
                                                words);
  // An honest header is walked once. Twice its size leaves room for struct padding, and stops
  // pointers that make a small header look large.
  const capnp::ReaderOptions options{.traversalLimitInWords = 2 * words + 64,
                                     .nestingLimit = static_cast<int>(8 + 2 * bounds.depth)};
  try {
    capnp::SegmentArrayMessageReader reader(kj::arrayPtr(&segment, 1), options);
    return read_frame(reader.getRoot<wire::Frame>(), bounds);
  } catch (const kj::Exception& problem) {
    return fail(errc::bad_frame,
                fmt::format("a malformed header: {}", problem.getDescription().cStr()));
  }
}

}  // namespace troupe::messages
