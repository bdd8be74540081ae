#include <png.h>

#include <array>
#include <csetjmp>
#include <cstring>
#include <utility>

#include "engine/data/image/image.hpp"

namespace troupe::engine {
namespace {

// One decompression. libpng reports errors by a jump back into `attempt`, so that function and
// those it calls hold no object with a destructor; everything lives here instead.
struct png_session {
  png_structp png = nullptr;
  png_infop info = nullptr;
  std::span<const std::byte> left;  // of the file
  std::array<char, 128> problem{};
  rgb_image image;
  std::vector<png_bytep> rows;

  png_session() = default;
  png_session(const png_session&) = delete;
  png_session& operator=(const png_session&) = delete;
  ~png_session() { png_destroy_read_struct(&png, &info, nullptr); }
};

[[noreturn]] void stop(png_structp png, png_const_charp text) {
  auto& session = *static_cast<png_session*>(png_get_error_ptr(png));
  std::strncpy(session.problem.data(), text, session.problem.size() - 1);
  png_longjmp(png, 1);
}

void ignore_warning(png_structp /*png*/, png_const_charp /*text*/) {}

void feed(png_structp png, png_bytep to, std::size_t count) {
  auto& left = static_cast<png_session*>(png_get_io_ptr(png))->left;
  if (count > left.size()) png_error(png, "it ends before the image does");
  std::memcpy(to, left.data(), count);
  left = left.subspan(count);
}

void begin(png_session& session) {
  auto* png = session.png;
  png_set_user_limits(png, most_image_side, most_image_side);
  png_set_chunk_cache_max(png, 128);
  png_set_chunk_malloc_max(png, 8 << 20);
  png_set_read_fn(png, &session, feed);
  png_read_info(png, session.info);
}

// Whatever the file holds becomes RGB of eight bits.
void transform(png_session& session) {
  auto* png = session.png;
  png_set_scale_16(png);
  png_set_palette_to_rgb(png);
  if (png_get_bit_depth(png, session.info) < 8) png_set_expand_gray_1_2_4_to_8(png);
  png_set_gray_to_rgb(png);
  png_set_strip_alpha(png);
  png_set_interlace_handling(png);
  png_read_update_info(png, session.info);
  if (png_get_rowbytes(png, session.info) != static_cast<std::size_t>(session.image.width) * 3)
    png_error(png, "it cannot be turned into RGB");
}

enum class png_step : std::uint8_t { header, pixels };

// Runs one step under the jump; false where libpng gave up.
bool attempt(png_session& session, png_step what) {
  if (setjmp(png_jmpbuf(session.png)) != 0) return false;
  if (what == png_step::header) {
    begin(session);
  } else {
    transform(session);
    png_read_image(session.png, session.rows.data());
    png_read_end(session.png, nullptr);  // checks the end: zlib's checksum covers the pixels
  }
  return true;
}

}  // namespace

result<rgb_image> decode_png(std::span<const std::byte> file) {
  png_session session;
  session.left = file;
  session.png = png_create_read_struct(PNG_LIBPNG_VER_STRING, &session, stop, ignore_warning);
  if (session.png != nullptr) session.info = png_create_info_struct(session.png);
  if (session.info == nullptr) return fail(errc::bad_data, "libpng has no memory for it");
  const auto refused = [&session] { return fail(errc::bad_data, session.problem.data()); };
  if (!attempt(session, png_step::header)) return refused();
  const std::size_t width = png_get_image_width(session.png, session.info);
  const std::size_t height = png_get_image_height(session.png, session.info);
  if (auto sound = check_image_size(width, height); !sound) return tl::unexpected(sound.error());
  session.image.width = static_cast<std::int64_t>(width);
  session.image.height = static_cast<std::int64_t>(height);
  session.image.pixels.resize(width * height * 3);
  for (std::size_t y = 0; y < height; ++y)
    session.rows.push_back(session.image.pixels.data() + y * width * 3);
  if (!attempt(session, png_step::pixels)) return refused();
  return std::move(session.image);
}

}  // namespace troupe::engine
