#include "messages/codec/short_header.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

namespace troupe::messages {
namespace {

static_assert(std::endian::native == std::endian::little, "the wire is little-endian");

constexpr std::uint8_t short_mark = 3;
constexpr std::size_t word_bytes = 8;
constexpr std::size_t most_counted = 255;  // by a byte

enum class field_kind : std::uint8_t { none, integer, real };

struct short_prefix {
  std::uint8_t mark = short_mark;
  std::uint8_t kind = 0;
  std::uint8_t lane = 0;
  std::uint8_t fields = 0;
  std::uint16_t version = protocol_version;
  std::uint8_t type_bytes = 0;
  std::uint8_t reserved = 0;
  std::uint64_t sender = 0;
  std::uint64_t target = 0;
  std::uint64_t request_id = 0;
  std::uint64_t deadline_us = 0;
};
static_assert(sizeof(short_prefix) == 40);

/// Of the type and the fields' kinds, with the zeros behind them.
std::size_t names_bytes(std::size_t type_bytes, std::size_t fields) {
  return (type_bytes + fields + word_bytes - 1) / word_bytes * word_bytes;
}

bool is_plain(const value& field) {
  return std::holds_alternative<std::int64_t>(field.of) ||
         std::holds_alternative<double>(field.of) ||
         std::holds_alternative<std::monostate>(field.of);
}

bool has_short_form(const frame& message, const limits& bounds) {
  if (message.body.size() != 1 || !message.tensors.empty() || bounds.elements == 0) return false;
  const auto& [type, fields] = message.body.front();
  return type.size() <= std::min(most_counted, bounds.text_bytes) &&
         fields.size() <= std::min<std::size_t>(most_counted, bounds.values) &&
         std::ranges::all_of(fields, is_plain);
}

tl::unexpected<error> refuse_short(const std::string& why) {
  return fail(errc::bad_frame, "frame refused: " + why);
}

/// Errors: bad_frame, version_mismatch.
result<void> check_prefix(const short_prefix& prefix, const limits& bounds) {
  if (prefix.version != protocol_version)
    return fail(errc::version_mismatch, fmt::format("the peer speaks protocol {}, we speak {}",
                                                    prefix.version, protocol_version));
  if (prefix.kind > static_cast<std::uint8_t>(frame_kind::unlink))
    return refuse_short(fmt::format("unknown kind {}", prefix.kind));
  if (prefix.lane > static_cast<std::uint8_t>(lane::data))
    return refuse_short(fmt::format("unknown lane {}", prefix.lane));
  if (bounds.elements == 0) return refuse_short("1 elements, limit elements is 0");
  if (prefix.fields > bounds.values)
    return refuse_short(fmt::format("{} values, limit values is {}", prefix.fields, bounds.values));
  if (prefix.type_bytes > bounds.text_bytes)
    return refuse_short(fmt::format("{} bytes of text, limit text_bytes is {}", prefix.type_bytes,
                                    bounds.text_bytes));
  return {};
}

template <class Number>
Number number_at(const std::byte* where) {
  Number out;
  std::memcpy(&out, where, sizeof(out));
  return out;
}

/// False: there is no such kind of field.
bool read_field(std::byte kind, const std::byte* number, value& out) {
  switch (static_cast<field_kind>(kind)) {
    case field_kind::none:
      return true;
    case field_kind::integer:
      out.of = number_at<std::int64_t>(number);
      return true;
    case field_kind::real:
      out.of = number_at<double>(number);
      return true;
  }
  return false;
}

}  // namespace

std::optional<encoded_header> encode_short(const frame& message, const limits& bounds) {
  if (!has_short_form(message, bounds)) return std::nullopt;
  const auto& [type, fields] = message.body.front();
  const std::size_t names = names_bytes(type.size(), fields.size());
  const std::size_t bytes = sizeof(short_prefix) + names + fields.size() * word_bytes;
  if (bytes > bounds.header_bytes) return std::nullopt;
  const short_prefix prefix{.kind = static_cast<std::uint8_t>(message.kind),
                            .lane = static_cast<std::uint8_t>(message.lane),
                            .fields = static_cast<std::uint8_t>(fields.size()),
                            .type_bytes = static_cast<std::uint8_t>(type.size()),
                            .sender = message.sender,
                            .target = message.target,
                            .request_id = message.request_id,
                            .deadline_us = message.deadline_us};
  encoded_header out(bytes);  // zeros
  std::memcpy(out.data(), &prefix, sizeof(prefix));
  std::byte* kind = out.data() + sizeof(prefix);
  std::byte* number = kind + names;
  std::memcpy(kind, type.data(), type.size());
  kind += type.size();
  for (const value& field : fields) {
    if (const auto* const integer = std::get_if<std::int64_t>(&field.of)) {
      *kind = static_cast<std::byte>(field_kind::integer);
      std::memcpy(number, integer, word_bytes);
    } else if (const auto* const real = std::get_if<double>(&field.of)) {
      *kind = static_cast<std::byte>(field_kind::real);
      std::memcpy(number, real, word_bytes);
    }
    ++kind;
    number += word_bytes;
  }
  return out;
}

bool is_short(std::span<const std::byte> header) noexcept {
  return !header.empty() && header.front() == std::byte{short_mark};
}

result<frame> decode_short(std::span<const std::byte> header, const limits& bounds) {
  if (header.size() < sizeof(short_prefix))
    return refuse_short(
        fmt::format("a short header of {} bytes ends within its prefix", header.size()));
  const auto prefix = number_at<short_prefix>(header.data());
  if (auto checked = check_prefix(prefix, bounds); !checked)
    return tl::unexpected(std::move(checked.error()));
  const std::size_t names = names_bytes(prefix.type_bytes, prefix.fields);
  if (header.size() != sizeof(prefix) + names + prefix.fields * word_bytes)
    return refuse_short(fmt::format("a short header of {} bytes with {} fields and a type of {}",
                                    header.size(), prefix.fields, prefix.type_bytes));
  frame out{.kind = static_cast<frame_kind>(prefix.kind),
            .lane = static_cast<lane>(prefix.lane),
            .sender = prefix.sender,
            .target = prefix.target,
            .request_id = prefix.request_id,
            .deadline_us = prefix.deadline_us};
  auto& [type, fields] = out.body.emplace_back();
  const std::byte* const text = header.data() + sizeof(prefix);
  type.assign(reinterpret_cast<const char*>(text), prefix.type_bytes);
  fields.resize(prefix.fields);
  for (std::size_t i = 0; i < fields.size(); ++i) {
    const std::byte kind = text[prefix.type_bytes + i];
    if (!read_field(kind, text + names + i * word_bytes, fields[i]))
      return refuse_short(fmt::format("unknown kind of value {}", std::to_integer<int>(kind)));
  }
  return out;
}

}  // namespace troupe::messages
