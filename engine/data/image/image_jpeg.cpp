#include <algorithm>
#include <array>
#include <csetjmp>
#include <utility>

#include "engine/data/image/image.hpp"

// After <cstdio>: jpeglib.h needs its FILE.
#include <jerror.h>
#include <jpeglib.h>

namespace troupe::engine {
namespace {

constexpr int most_scans = 500;  // a progressive image of many scans takes minutes to decode

// One decompression. libjpeg reports errors by a jump back into `decode`, so that function and
// those it calls hold no object with a destructor; everything lives here instead.
struct jpeg_session {
  jpeg_decompress_struct info{};
  jpeg_error_mgr errors{};
  jpeg_progress_mgr progress{};
  std::jmp_buf on_error{};
  std::array<char, JMSG_LENGTH_MAX> problem{};
  bool lacks_pixels = false;
  rgb_image image;
  std::vector<std::uint8_t> cmyk_row;

  jpeg_session() = default;
  jpeg_session(const jpeg_session&) = delete;
  jpeg_session& operator=(const jpeg_session&) = delete;
  ~jpeg_session() { jpeg_destroy_decompress(&info); }
};

jpeg_session& session_of(j_common_ptr info) {
  return *static_cast<jpeg_session*>(info->client_data);
}

[[noreturn]] void stop(j_common_ptr info) {
  auto& session = session_of(info);
  session.errors.format_message(info, session.problem.data());
  std::longjmp(session.on_error, 1);
}

// libjpeg goes on after a warning. Some warnings are about bytes between the parts of an image,
// which real collections are full of; these four are about pixels that are not there.
void note_warning(j_common_ptr info, int level) {
  auto& session = session_of(info);
  const int code = session.errors.msg_code;
  const bool harmful = code == JWRN_JPEG_EOF || code == JWRN_HIT_MARKER ||
                       code == JWRN_HUFF_BAD_CODE || code == JWRN_MUST_RESYNC;
  if (level >= 0 || !harmful || session.lacks_pixels) return;
  session.lacks_pixels = true;
  session.errors.format_message(info, session.problem.data());
}

void limit_scans(j_common_ptr info) {
  if (reinterpret_cast<j_decompress_ptr>(info)->input_scan_number > most_scans)
    ERREXIT(info, JERR_BAD_PROGRESSION);
}

void write_nothing(j_common_ptr /*info*/) {}

void install_handlers(jpeg_session& session) {
  session.info.err = jpeg_std_error(&session.errors);
  session.info.client_data = &session;
  session.errors.error_exit = stop;
  session.errors.emit_message = note_warning;
  session.errors.output_message = write_nothing;
  session.progress.progress_monitor = limit_scans;
}

// Reads the header and chooses size and colours of the output.
void begin(jpeg_session& session, std::span<const std::byte> file) {
  auto& info = session.info;
  jpeg_create_decompress(&info);
  info.progress = &session.progress;
  jpeg_mem_src(&info, reinterpret_cast<const unsigned char*>(file.data()), file.size());
  jpeg_read_header(&info, TRUE);
  const bool four = info.jpeg_color_space == JCS_CMYK || info.jpeg_color_space == JCS_YCCK;
  info.out_color_space = four ? JCS_CMYK : JCS_RGB;
}

void choose_scale(jpeg_decompress_struct& info, std::int64_t side) {
  const std::int64_t shorter = std::min(info.image_width, info.image_height);
  info.scale_num = 1;
  info.scale_denom = 1;
  while (info.scale_denom < 8 && shorter / (2 * std::int64_t{info.scale_denom}) >= 2 * side)
    info.scale_denom *= 2;
}

// Adobe's programs store CMYK inverted, and all CMYK JPEGs with their marker are read that way.
void cmyk_to_rgb(const std::uint8_t* cmyk, std::uint8_t* rgb, std::size_t pixels, bool inverted) {
  const auto light = [inverted](int ink) { return inverted ? ink : 255 - ink; };
  for (std::size_t i = 0; i < pixels; ++i, cmyk += 4, rgb += 3)
    for (int channel = 0; channel < 3; ++channel)
      rgb[channel] = static_cast<std::uint8_t>((light(cmyk[channel]) * light(cmyk[3]) + 127) / 255);
}

void read_rows(jpeg_session& session) {
  auto& info = session.info;
  const std::size_t row_bytes = std::size_t{info.output_width} * 3;
  if (std::int64_t{info.output_width} != session.image.width ||
      std::int64_t{info.output_height} != session.image.height)
    ERREXIT(&info, JERR_BAD_LENGTH);
  while (info.output_scanline < info.output_height && !session.lacks_pixels) {
    auto* rgb = session.image.pixels.data() + info.output_scanline * row_bytes;
    const bool four = info.out_color_space == JCS_CMYK;
    auto* row = four ? session.cmyk_row.data() : rgb;
    jpeg_read_scanlines(&info, &row, 1);
    if (four) cmyk_to_rgb(row, rgb, info.output_width, info.saw_Adobe_marker != FALSE);
  }
}

enum class jpeg_step : std::uint8_t { header, pixels };

// Runs one step under the jump; false where libjpeg gave up.
bool attempt(jpeg_session& session, jpeg_step what, std::span<const std::byte> file) {
  if (setjmp(session.on_error) != 0) return false;
  if (what == jpeg_step::header) {
    begin(session, file);
  } else {
    jpeg_start_decompress(&session.info);
    read_rows(session);  // and no jpeg_finish_decompress: what follows the pixels is no concern
  }
  return true;
}

}  // namespace

result<rgb_image> decode_jpeg(std::span<const std::byte> file, std::int64_t side) {
  jpeg_session session;
  install_handlers(session);
  const auto refused = [&session] { return fail(errc::bad_data, session.problem.data()); };
  if (!attempt(session, jpeg_step::header, file)) return refused();
  auto& info = session.info;
  if (auto sound = check_image_size(info.image_width, info.image_height); !sound)
    return tl::unexpected(sound.error());
  choose_scale(info, side);
  const auto scaled = [&info](std::size_t length) {
    return (length + info.scale_denom - 1) / info.scale_denom;
  };
  const auto width = scaled(info.image_width);
  const auto height = scaled(info.image_height);
  session.image.width = static_cast<std::int64_t>(width);
  session.image.height = static_cast<std::int64_t>(height);
  session.image.pixels.resize(width * height * 3);
  session.cmyk_row.resize(width * 4);
  if (!attempt(session, jpeg_step::pixels, file) || session.lacks_pixels) return refused();
  return std::move(session.image);
}

}  // namespace troupe::engine
