# Loads and stores of big-endian numbers at any address, and loads of bytes as they are.

cdef extern from *:
    """
    #include <stdint.h>
    #include <string.h>
    #if defined(_MSC_VER)
      #include <stdlib.h>
      #define dcp_swap16 _byteswap_ushort
      #define dcp_swap32 _byteswap_ulong
      #define dcp_swap64 _byteswap_uint64
    #else
      #define dcp_swap16 __builtin_bswap16
      #define dcp_swap32 __builtin_bswap32
      #define dcp_swap64 __builtin_bswap64
    #endif
    #if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
      #undef dcp_swap16
      #undef dcp_swap32
      #undef dcp_swap64
      #define dcp_swap16(x) (x)
      #define dcp_swap32(x) (x)
      #define dcp_swap64(x) (x)
    #endif
    /* memcpy is the only unaligned access that C allows. Compilers make a single load of it. */
    static inline uint16_t load16(const uint8_t *at) { uint16_t x; memcpy(&x, at, 2); return dcp_swap16(x); }
    static inline uint32_t load32(const uint8_t *at) { uint32_t x; memcpy(&x, at, 4); return dcp_swap32(x); }
    static inline uint64_t load64(const uint8_t *at) { uint64_t x; memcpy(&x, at, 8); return dcp_swap64(x); }
    static inline uint64_t word_at(const char *at) { uint64_t x; memcpy(&x, at, 8); return x; }
    static inline int count_bits(uint64_t x) {
      x -= x >> 1 & 0x5555555555555555ULL;
      x = (x & 0x3333333333333333ULL) + (x >> 2 & 0x3333333333333333ULL);
      x = (x + (x >> 4)) & 0x0F0F0F0F0F0F0F0FULL;
      return (int)(x * 0x0101010101010101ULL >> 56);
    }
    static inline void store16(uint8_t *at, uint16_t x) { x = dcp_swap16(x); memcpy(at, &x, 2); }
    static inline void store32(uint8_t *at, uint32_t x) { x = dcp_swap32(x); memcpy(at, &x, 4); }
    static inline void store64(uint8_t *at, uint64_t x) { x = dcp_swap64(x); memcpy(at, &x, 8); }
    """
    uint16_t load16(const uint8_t* at) noexcept nogil
    uint32_t load32(const uint8_t* at) noexcept nogil
    uint64_t load64(const uint8_t* at) noexcept nogil
    uint64_t word_at(const char* at) noexcept nogil
    int count_bits(uint64_t x) noexcept nogil
    void store16(uint8_t* at, uint16_t x) noexcept nogil
    void store32(uint8_t* at, uint32_t x) noexcept nogil
    void store64(uint8_t* at, uint64_t x) noexcept nogil
